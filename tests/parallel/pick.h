// A model of which each forward uses what it is told.
#pragma once

#include <string>

#include "tests/parallel/support.h"

namespace tessera::test {

/// x * (those of a, b, c that are asked for).
struct PickImpl : nn::Module {
  Tensor a = register_parameter("a", torch::full({6}, 2.0));
  Tensor b = register_parameter("b", torch::full({6}, 3.0));
  Tensor c = register_parameter("c", torch::full({6}, 4.0));
  Tensor forward(const Tensor& x, const std::string& used) {
    Tensor y = x;
    if (used.find('a') != std::string::npos) y = y * a;
    if (used.find('b') != std::string::npos) y = y * b;
    if (used.find('c') != std::string::npos) y = y * c;
    return y;
  }
};

inline Tensor ones() { return torch::ones({1, 6}).requires_grad_(); }

inline bool is_all(const Tensor& tensor, double value) {
  return tensor.defined() && tensor.eq(value).all().item<bool>();
}

}  // namespace tessera::test
