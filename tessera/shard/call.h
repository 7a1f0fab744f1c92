// A module called with FSDP2's boundary rules.
//
//   Tensor y = call(block, x, mask);   // instead of block->forward(x, mask)
//
// Floating inputs are cast to the unit's param_dtype, outputs to its
// output_dtype, and the unit is resharded at the end if it is to be. A module
// that was not sharded is simply called.
#pragma once

#include <torch/nn/module.h>

#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tessera/shard/unit.h"

namespace tessera {

namespace internal {
template <class T>
inline constexpr bool is_tuple = false;
template <class... T>
inline constexpr bool is_tuple<std::tuple<T...>> = true;
}  // namespace internal

/// One call under way. Used through `call`.
class CallScope {
 public:
  explicit CallScope(torch::nn::Module& module);
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  at::Tensor input(const at::Tensor& tensor) const;
  at::Tensor output(const at::Tensor& tensor) const;

  template <class T>
  decltype(auto) input(T&& value) const
      requires(!std::is_same_v<std::decay_t<T>, at::Tensor>) {
    if constexpr (std::is_same_v<std::decay_t<T>, std::vector<at::Tensor>>) {
      std::vector<at::Tensor> cast;
      for (const at::Tensor& tensor : value) cast.push_back(input(tensor));
      return cast;
    } else {
      return std::forward<T>(value);
    }
  }

  template <class T>
  T output(T value) const requires(!std::is_same_v<T, at::Tensor>) {
    if constexpr (std::is_same_v<T, std::vector<at::Tensor>>) {
      for (at::Tensor& tensor : value) tensor = output(tensor);
    } else if constexpr (internal::is_tuple<T>) {
      std::apply([&](auto&... part) { ((part = output(part)), ...); }, value);
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
/// holder or a pointer to a module. Inputs that are tensors or vectors of
/// tensors are cast; outputs may be a tensor, a vector or tuple of tensors.
template <class Module, class... Inputs>
auto call(Module&& module, Inputs&&... inputs) {
  CallScope scope(*module);
  return scope.output(
      module->forward(scope.input(std::forward<Inputs>(inputs))...));
}

}  // namespace tessera
