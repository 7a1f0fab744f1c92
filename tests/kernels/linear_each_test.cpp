// Layers of one input: which gradients there are, casts and refusals.
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <string>

#include "tessera/base/error.h"
#include "tessera/kernels/linear_each.h"

namespace tessera {
namespace {

using torch::Tensor;

Tensor random(at::IntArrayRef sizes) {
  return torch::randn(sizes, torch::kDouble);
}

/// Matrix products that this thread begins.
class Products {
 public:
  Products() {
    number() = 0;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&count).scopes({at::RecordScope::FUNCTION}));
  }
  ~Products() { at::removeCallback(handle_); }
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  static int& number() {
    thread_local int number = 0;
    return number;
  }

 private:
  static std::unique_ptr<at::ObserverContext> count(
      const at::RecordFunction& function) {
    const std::string name = function.name();
    if (name == "aten::mm" || name == "aten::addmm_") ++number();
    return nullptr;
  }
  at::CallbackHandle handle_ = at::INVALID_CALLBACK_HANDLE;
};

int products_of_backward(const Tensor& loss) {
  const Products products;
  loss.backward();
  return Products::number();
}

TEST(LinearEach, ComputesNoGradientThatNobodyWants) {
  const Tensor x = random({4, 3});
  const Tensor frozen = random({2, 3});
  const Tensor weight = random({5, 3}).requires_grad_();
  auto results = linear_each(x, {frozen, weight});
  EXPECT_EQ(products_of_backward(results[1].sum()), 1);
  results = linear_each(x.clone().requires_grad_(), {frozen, weight});
  EXPECT_EQ(products_of_backward(results[0].sum()), 1);
  results = linear_each(x.clone().requires_grad_(), {frozen, weight});
  EXPECT_EQ(products_of_backward(results[0].sum() + results[1].sum()), 3);
}

TEST(LinearEach, GivesTheGradientsThatAreWanted) {
  const Tensor x = random({4, 3});
  const Tensor frozen = random({2, 3});
  const Tensor weight = random({5, 3}).requires_grad_();
  auto results = linear_each(x, {frozen, weight});
  results[1].sum().backward();
  EXPECT_TRUE(torch::equal(weight.grad(), x.sum(0).expand({5, 3})));
  EXPECT_FALSE(frozen.grad().defined());

  const Tensor input = x.clone().requires_grad_();
  results = linear_each(input, {frozen, weight.detach()});
  results[0].sum().backward();  // the other result is not used
  EXPECT_TRUE(torch::allclose(input.grad(), frozen.sum(0).expand({4, 3})));
}

TEST(LinearEach, CastsItsInputToTheWeights) {
  const Tensor x = random({4, 3}).requires_grad_();
  const Tensor weight = random({5, 3}).to(torch::kBFloat16).requires_grad_();
  const Tensor y = linear_each(x, {weight}).front();
  EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
  y.sum().backward();
  EXPECT_EQ(x.grad().scalar_type(), x.scalar_type());
  EXPECT_EQ(weight.grad().scalar_type(), torch::kBFloat16);
}

TEST(LinearEach, RefusesWhatDoesNotFit) {
  const Tensor x = random({3, 4});
  EXPECT_THROW((void)linear_each(x, {}), InvalidArgument);
  EXPECT_THROW((void)linear_each(x, {random({2, 3})}), InvalidArgument);
  EXPECT_THROW(
      (void)linear_each(x, {random({2, 4}), random({2, 4}).to(torch::kFloat)}),
      InvalidArgument);
  EXPECT_THROW((void)linear_each(x, {random({1, 4, 4})}), InvalidArgument);
  EXPECT_THROW((void)linear_each(x.to(torch::kLong), {random({2, 4})}),
               InvalidArgument);
  EXPECT_THROW((void)linear_each(random({}), {random({2, 4})}),
               InvalidArgument);
}

}  // namespace
}  // namespace tessera
