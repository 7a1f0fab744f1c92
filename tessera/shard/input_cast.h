// Inputs in the dtype of a unit's parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera {

class InputCast {
 public:
  /// `input` in `dtype`, differentiably. The last result is kept while its
  /// source lives and is not written, so that q, k and v share one cast.
  [[nodiscard]] at::Tensor operator()(const at::Tensor& input,
                                      c10::ScalarType dtype);

  /// Lets go of the last result.
  void forget();

 private:
  using WeakTensor =
      c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  WeakTensor source_{
      c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
  uint32_t version_ = 0;
  bool with_grad_ = false;
  at::Tensor result_;
};

}  // namespace tessera
