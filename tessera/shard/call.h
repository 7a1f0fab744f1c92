// A module called with FSDP2's boundary rules.
//
//   Tensor y = call(block, x, mask);   // instead of block->forward(x, mask)
//
// Floating inputs are cast to the unit's param_dtype, outputs to its
// output_dtype, and the unit is resharded at the end if it is to be. A module
// that was not sharded is simply called.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "tessera/module/each_tensor.h"
#include "tessera/shard/unit.h"

namespace tessera {

/// One call under way. Used through `call`.
class CallScope {
 public:
  explicit CallScope(torch::nn::Module& module);
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  at::Tensor input(const at::Tensor& tensor) const;
  at::Tensor output(const at::Tensor& tensor) const;

  /// A copy with its tensors cast, or `value` itself where none is found.
  template <class T>
  decltype(auto) input(T&& value) const
      requires(!std::is_same_v<std::decay_t<T>, at::Tensor>) {
    if constexpr (internal::TensorsIn<std::decay_t<T>>::some) {
      std::decay_t<T> cast = std::forward<T>(value);
      internal::change_tensors(
          cast, [this](const at::Tensor& tensor) { return input(tensor); });
      return cast;
    } else {
      return std::forward<T>(value);
    }
  }

  template <class T>
  T output(T value) const requires(!std::is_same_v<T, at::Tensor>) {
    if constexpr (internal::TensorsIn<T>::known) {
      internal::change_tensors(
          value, [this](const at::Tensor& tensor) { return output(tensor); });
    } else {
      refuse_unknown_output();
    }
    return value;
  }

 private:
  /// Raises when an output_dtype is set: it would silently not act.
  void refuse_unknown_output() const;

  std::vector<std::shared_ptr<Unit>> units_;
};

/// Returns `module->forward(inputs...)`, cast as above. `module` is a module
/// holder or a pointer to a module. Tensors are cast wherever each_tensor.h
/// finds them. A type of your own is passed on as it is: in inputs the
/// operators cast then; as output it is an error where an output_dtype is set.
template <class Module, class... Inputs>
auto call(Module&& module, Inputs&&... inputs) {
  CallScope scope(*module);
  return scope.output(
      module->forward(scope.input(std::forward<Inputs>(inputs))...));
}

}  // namespace tessera
