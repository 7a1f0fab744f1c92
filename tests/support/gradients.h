// Parameters that have gradients, and the norms of these.
#pragma once

#include <torch/torch.h>

#include <limits>
#include <vector>

namespace tessera::testing {

inline constexpr double kNormTypes[] = {
    1, 2, 3, 0.5, std::numeric_limits<double>::infinity()};

/// Plain parameters of zeros with these as their gradients.
inline std::vector<at::Tensor> parameters_with(
    const std::vector<at::Tensor>& gradients) {
  std::vector<at::Tensor> result;
  for (const auto& gradient : gradients) {
    result.push_back(torch::zeros_like(gradient).set_requires_grad(true));
    result.back().mutable_grad() = gradient.clone();
  }
  return result;
}

/// Of all elements together, in double precision.
inline double norm_of(const std::vector<at::Tensor>& tensors, double p) {
  std::vector<at::Tensor> flat;
  for (const auto& tensor : tensors) {
    flat.push_back(tensor.reshape({-1}).to(at::kDouble));
  }
  return at::linalg_vector_norm(at::cat(flat), p).item<double>();
}

}  // namespace tessera::testing
