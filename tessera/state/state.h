// All that a checkpoint holds, by name.
//
//   State state = state_of(*model, optimizer);     // "model" and "optim"
//   state.add("step", step);
//   state.add("loader", std::make_shared<ValueState>(
//       [&] { return loader.position(); },
//       [&](const Value& value) { loader.seek(value); }));
//   checkpoint::save("ckpt/step-1000", state);
//
//   checkpoint::load("ckpt/step-1000", state);
//   step = state.value("step").as_int();
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tessera/state/state_dict.h"

namespace tessera {

class State {
 public:
  using Part = std::pair<std::string, std::shared_ptr<Stateful>>;

  /// `part` is saved below `name`. Errors, of all: InvalidArgument for a name
  /// twice.
  State& add(const std::string& name, std::shared_ptr<Stateful> part);
  /// A value, nested as you like; `value(name)` is what was loaded. The same on
  /// all ranks: what differs needs a name of each rank's own.
  State& add(const std::string& name, Value value);
  template <class Number>
    requires std::is_arithmetic_v<Number>
  State& add(const std::string& name, Number value) {
    return add(name, Value(value));
  }
  /// A tensor, loaded in place: a shard or plain.
  State& add(const std::string& name, const at::Tensor& tensor);

  /// Errors: InvalidArgument when `add` gave no value of that name.
  [[nodiscard]] const Value& value(const std::string& name) const;
  [[nodiscard]] const std::vector<Part>& parts() const { return parts_; }

 private:
  std::vector<Part> parts_;
};

/// A value that is asked for when it is saved, and given when it was loaded.
/// One of which nothing is stored is missing, and not given.
class ValueState final : public Stateful {
 public:
  ValueState(std::function<Value()> get, std::function<void(const Value&)> set)
      : get_(std::move(get)), set_(std::move(set)) {}

  [[nodiscard]] StateDict state_dict() override;
  [[nodiscard]] StateDict targets(const Stored& stored) override;
  void loaded(const StateDict& filled, const Stored& stored) override;

 private:
  std::function<Value()> get_;
  std::function<void(const Value&)> set_;
};

/// A module's parameters and buffers, by their full names. A tied parameter is
/// there under each of its names. `model` must outlive it.
[[nodiscard]] std::shared_ptr<Stateful> model_state(torch::nn::Module& model);

/// An optimizer's state and parameter groups, with parameters named as in
/// `model`: tessera::AdamW, torch::optim's AdamW, Adam and SGD.
///
/// A parameter that has not stepped yet is saved with zeros, at step 0. Loading
/// makes the state that is not there yet, and sets the groups' options.
/// Errors: Unsupported for another optimizer; InvalidArgument for parameters
///         that `model` does not have.
[[nodiscard]] std::shared_ptr<Stateful> optimizer_state(
    torch::nn::Module& model, torch::optim::Optimizer& optimizer);

/// "model", and "optim" with an optimizer.
[[nodiscard]] State state_of(torch::nn::Module& model);
[[nodiscard]] State state_of(torch::nn::Module& model,
                             torch::optim::Optimizer& optimizer);

}  // namespace tessera
