// What AdamW refuses, and the words for it. For adamw.cpp.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/adamw.h>

#include <string>

namespace tessera::adamw {

[[nodiscard]] std::string name_of(const at::Tensor& parameter);

/// Errors: InvalidArgument for options of another optimizer.
[[nodiscard]] const torch::optim::AdamWOptions& options_of(
    const torch::optim::OptimizerParamGroup& group);

/// Errors: InvalidArgument for numbers out of range.
void validate(const torch::optim::AdamWOptions& options);

/// Errors: Unsupported for sparse gradients and complex parameters.
void check_kind(const at::Tensor& parameter, const at::Tensor& gradient);

/// Whether `state` can be a moment of `parameter`.
[[nodiscard]] bool fits(const at::Tensor& state, const at::Tensor& parameter);

}  // namespace tessera::adamw
