// One torch::nn layer with a way to run it: a row of the table.
//
//   {.name = "Linear2d", .make = makes Linear(6, 5), .forward = runs it}
//
// Layers are built, and inputs drawn, in the default dtype: the tests set it.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace tessera::testing {

using ModulePtr = std::shared_ptr<torch::nn::Module>;

/// Names the data of one forward: every rank and step has its own.
struct Batch {
  int rank = 0;
  int step = 0;
};

struct LayerCase {
  std::string name;
  std::function<ModulePtr()> make;
  // The layer's output for `batch`; its first dim is kept, the others are
  // mixed.
  std::function<torch::Tensor(torch::nn::Module&, Batch)> forward;
  // Parameters of the layer that training may leave as they are.
  std::vector<std::string> may_rest = {};
  // Whether it can be made without values, to get those of its initialiser.
  bool can_be_on_meta = true;
};

/// What GoogleTest prints of a row.
void PrintTo(const LayerCase& layer_case, std::ostream* out);

/// Normal values; `which` tells several inputs of one batch apart.
torch::Tensor values(Batch batch, at::IntArrayRef sizes, int which = 0);
/// Integers in [0, bound).
torch::Tensor indices(Batch batch, int64_t bound, at::IntArrayRef sizes);

/// A layer with a forward of its own: `forward(layer_impl, batch)`.
template <class Holder, class Forward, class... Options>
LayerCase layer_with(std::string name, Forward forward, Options... options) {
  return {.name = std::move(name),
          .make = [=]() -> ModulePtr { return Holder(options...).ptr(); },
          .forward =
              [=](torch::nn::Module& module, Batch batch) {
                using Impl = typename Holder::ContainedType;
                return forward(dynamic_cast<Impl&>(module), batch);
              }};
}

/// A layer that maps one tensor of sizes `input` to one tensor.
template <class Holder, class... Options>
LayerCase layer(std::string name, std::vector<int64_t> input,
                Options... options) {
  const auto forward = [input](auto& impl, Batch batch) -> torch::Tensor {
    return impl.forward(values(batch, input));
  };
  return layer_with<Holder>(std::move(name), forward, options...);
}

std::vector<LayerCase> dense_cases();      // linear, convolutions, norms, ...
std::vector<LayerCase> lookup_cases();     // embeddings, adaptive softmax
std::vector<LayerCase> recurrent_cases();  // RNN, LSTM, GRU and their cells
std::vector<LayerCase> attention_cases();  // attention and transformers
std::vector<LayerCase> container_cases();  // Sequential, ModuleDict, ...
std::vector<LayerCase> use_cases();        // other ways to make and to run them

/// All of the above: every layer that fully_shard takes.
std::vector<LayerCase> all_cases();
/// Those of them that initialisers give values to.
std::vector<LayerCase> cases_to_initialise();

}  // namespace tessera::testing
