// Parameters, gradients and options for the tests of AdamW.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <vector>

#include "tests/optim/test_shards.h"

namespace tessera::testing {

using Tensors = std::vector<at::Tensor>;

inline Tensors clones(const Tensors& tensors) {
  Tensors result;
  for (const auto& tensor : tensors) {
    result.push_back(tensor.detach().clone().set_requires_grad(true));
  }
  return result;
}

inline Tensors random_tensors(at::ScalarType dtype = at::kDouble) {
  Tensors result;
  for (std::vector<int64_t> sizes : std::vector<std::vector<int64_t>>{
           {7, 5}, {5}, {3, 2, 2}, {1}, {13, 17}, {0, 4}}) {
    result.push_back(torch::randn(sizes, dtype).set_requires_grad(true));
  }
  return result;
}

// In step `step`, parameter i goes without a gradient now and then.
inline bool has_gradient(size_t i, int step) {
  return i == 0 || (step + static_cast<int>(i)) % (static_cast<int>(i) + 1);
}

inline Tensors random_gradients(const Tensors& like, int step) {
  Tensors gradients;
  for (size_t i = 0; i < like.size(); ++i) {
    at::Tensor random = torch::randn(like[i].sizes(), like[i].scalar_type());
    gradients.push_back(has_gradient(i, step) ? random : at::Tensor());
  }
  return gradients;
}

inline void set_gradients(const Tensors& parameters, const Tensors& gradients) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].mutable_grad() =
        gradients[i].defined() ? gradients[i].clone() : at::Tensor();
  }
}

// Even ones decay with one learning rate, odd ones with another.
inline std::vector<torch::optim::OptimizerParamGroup> two_groups(
    const Tensors& parameters, bool amsgrad) {
  Tensors even, odd;
  for (size_t i = 0; i < parameters.size(); ++i) {
    (i % 2 ? odd : even).push_back(parameters[i]);
  }
  auto options = [&](double lr, double decay) {
    return std::make_unique<torch::optim::AdamWOptions>(
        torch::optim::AdamWOptions(lr).weight_decay(decay).amsgrad(amsgrad));
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(even, options(1e-2, 0.1));
  groups.emplace_back(odd, options(3e-3, 0.0));
  return groups;
}

}  // namespace tessera::testing
