// How modules get their first values when their memory comes after their
// constructor: the initialisers of all torch::nn modules, run again in place.
//
//   for (module, children before parents)
//     if (initialize_module(*module) == Initialized::unknown_type) complain();
//
// A module of one's own says how it is initialised by one more base class:
//
//   struct ScaleImpl : torch::nn::Module, tessera::Initializable {
//     void reset_parameters() override { torch::nn::init::ones_(weight); }
//     torch::Tensor weight;
//   };
//
// Nothing is registered anew: values go into the tensors that the module's
// members and dictionaries hold now. RNN, LSTM, GRU and their cells are filled
// through the dictionaries, all others through their members.
#pragma once

#include <torch/nn/module.h>

#include <span>

namespace tessera {

/// What a module of one's own implements to be given first values.
class Initializable {
 public:
  virtual ~Initializable() = default;

  /// Writes all parameters and buffers of this module. Children have their
  /// values already and may be written again.
  virtual void reset_parameters() = 0;
};

enum class Initialized {
  yes,
  unknown_type,   // it has parameters or buffers, and no initialiser for them
  nothing_to_do,  // it has none of its own, or was given their values
};

/// Runs the initialiser of `module` on its own parameters and buffers.
///
/// Call it for children before parents. What a torch::nn constructor does to
/// the modules below it is done here too: MultiheadAttention zeroes the bias of
/// its `out_proj`, Transformer draws all matrices below it anew.
///
/// The values are those of the constructor, bit for bit from the same generator
/// state, except in Transformer and its parts and in the tails of
/// AdaptiveLogSoftmaxWithLoss, which are distributed alike: constructors of the
/// former draw twice or copy one layer to all others, that of the latter draws
/// in an order that its compiler chose.
///
/// A class derived from a torch::nn module counts as that module while it adds
/// no parameter or buffer; `Initializable` goes before. An Embedding made from
/// given weights is left alone.
Initialized initialize_module(torch::nn::Module& module);

/// The same where the modules below are not at hand, unit by unit: writes
/// nothing but `module`'s own parameters and buffers, and does what the
/// constructors of torch::nn modules among `ancestors` would do to them.
/// Modules may come in any order; an Initializable ancestor is not asked.
///
/// ancestors: the modules above `module`, nearest first.
Initialized initialize_module(torch::nn::Module& module,
                              std::span<torch::nn::Module* const> ancestors);

}  // namespace tessera
