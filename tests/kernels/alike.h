// Two functions of tensors that must agree, with their gradients.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

namespace tessera::alike {

using torch::Tensor;
using Tensors = std::vector<Tensor>;
using Function = std::function<Tensors(const Tensors&)>;

// Doubles differ by the order of sums only. The low dtypes are compared with
// double arithmetic on the same rounded inputs: one rounding of each result.
inline double tolerance(torch::Dtype dtype) {
  if (dtype == torch::kBFloat16) return 8e-3;
  return dtype == torch::kFloat ? 1e-5 : 1e-11;
}

inline void expect_close(const Tensor& got, const Tensor& want,
                         double tolerance, const std::string& what) {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  EXPECT_TRUE(torch::allclose(got.to(torch::kDouble), want.to(torch::kDouble),
                              tolerance, tolerance))
      << what << ": differs by "
      << (got.to(torch::kDouble) - want.to(torch::kDouble)).abs().max();
}

inline Tensors leaves(const Tensors& inputs, torch::Dtype dtype) {
  Tensors result;
  for (const Tensor& input : inputs) {
    result.push_back(input.detach().to(dtype).clone().requires_grad_());
  }
  return result;
}

inline Tensors gradients(const Tensors& outputs, const Tensors& inputs) {
  Tensors seeds;
  for (const Tensor& output : outputs) {
    const auto generator = at::detail::createCPUGenerator(seeds.size() + 5);
    seeds.push_back(torch::randn(output.sizes(), generator, torch::kDouble)
                        .to(output.scalar_type()));
  }
  return torch::autograd::grad(outputs, inputs, seeds);
}

/// `fused` and `plain` give the same results and gradients for these inputs, in
/// three dtypes.
inline void expect_alike(const std::string& what, const Tensors& inputs,
                         const Function& fused, const Function& plain) {
  for (const auto dtype : {torch::kDouble, torch::kFloat, torch::kBFloat16}) {
    const std::string at = what + " " + c10::toString(dtype);
    const Tensors low = leaves(inputs, dtype);
    const Tensors high = leaves(low, torch::kDouble);
    const Tensors got = fused(low);
    const Tensors want = plain(high);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      expect_close(got[i], want[i], tolerance(dtype), at);
    }
    const Tensors got_gradients = gradients(got, low);
    const Tensors want_gradients = gradients(want, high);
    for (size_t i = 0; i < low.size(); ++i) {
      EXPECT_EQ(got_gradients[i].scalar_type(), dtype) << at;
      // Relative to all: single entries of a long sum may cancel.
      const double size =
          want_gradients[i].numel() > 0
              ? std::max(1.0, want_gradients[i].abs().max().item<double>())
              : 1.0;
      expect_close(got_gradients[i] / size, want_gradients[i] / size,
                   2 * tolerance(dtype), at + ", gradient");
    }
  }
}

}  // namespace tessera::alike
