#include "tessera/shard/gradient_hook.h"

#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace tessera {
namespace {

using torch::autograd::PostAccumulateGradHook;

class GradientHook final : public PostAccumulateGradHook {
 public:
  GradientHook(std::function<void()> then,
               std::unique_ptr<PostAccumulateGradHook> before)
      : then_(std::move(then)), before_(std::move(before)) {}

  void operator()(const torch::autograd::Variable& tensor) override {
    if (before_) (*before_)(tensor);
    then_();
  }

 private:
  std::function<void()> then_;
  std::unique_ptr<PostAccumulateGradHook> before_;
};

}  // namespace

std::unique_ptr<PostAccumulateGradHook> make_gradient_hook(
    std::function<void()> then,
    std::unique_ptr<PostAccumulateGradHook> before) {
  return std::make_unique<GradientHook>(std::move(then), std::move(before));
}

}  // namespace tessera
