// Numbers that C++ and Python compute alike, to the bit, from a name: so that a
// case carries no weights and no data.
//
//   start("list.0.m.weight", 7, {4, 3})   the same as values.py's start
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>

namespace differential {

/// n numbers in [0, 2^16).
[[nodiscard]] torch::Tensor draws(const std::string& name, uint32_t seed,
                                  int64_t n);

/// fp32 multiples of 2^-15 in [-1, 1).
[[nodiscard]] torch::Tensor uniform(const std::string& name, uint32_t seed,
                                    at::IntArrayRef sizes);

/// Whole numbers in [0, bound).
[[nodiscard]] torch::Tensor whole(const std::string& name, uint32_t seed,
                                  at::IntArrayRef sizes, int64_t bound);

/// The first value of the parameter `name`: matrices such that layers keep the
/// size of what passes through, weights of norms around 1.
[[nodiscard]] torch::Tensor start(const std::string& name, uint32_t seed,
                                  at::IntArrayRef sizes);

}  // namespace differential
