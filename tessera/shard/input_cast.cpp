#include "tessera/shard/input_cast.h"

#include <torch/csrc/autograd/grad_mode.h>

namespace tessera {

at::Tensor InputCast::operator()(const at::Tensor& input,
                                 c10::ScalarType dtype) {
  if (input.is_inference()) return input.to(dtype);  // has no version
  const auto version = static_cast<uint32_t>(input._version());
  const bool with_grad = torch::GradMode::is_enabled() && input.requires_grad();
  if (source_.lock().get() != input.unsafeGetTensorImpl() ||
      version_ != version || with_grad_ != with_grad) {
    source_ = WeakTensor(input.getIntrusivePtr());
    version_ = version;
    with_grad_ = with_grad;
    result_ = input.to(dtype);
  }
  return result_;
}

void InputCast::forget() { *this = {}; }

}  // namespace tessera
