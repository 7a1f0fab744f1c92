// A small model: two blocks and a head.
//
//   x [5, 6] -> a: Block(6, 8) -> b: Block(8, 8) -> c: Linear(8, 3)
//
// A block's `extra` takes no part in its forward.
#pragma once

#include <string>
#include <vector>

#include "tests/support/agreement.h"

namespace tessera::test {

struct BlockImpl : nn::Module {
  nn::Linear f{nullptr};
  Tensor gain, extra;

  BlockImpl(int inputs, int outputs) {
    f = register_module("f", nn::Linear(inputs, outputs));
    gain = register_parameter("gain", torch::ones({outputs}));
    extra = register_parameter("extra", torch::full({outputs}, 0.3));
  }
  Tensor forward(const Tensor& x) { return torch::tanh(f(x)) * gain; }
};
TORCH_MODULE(Block);

/// A parameter of another module under a second name.
struct TiedImpl : nn::Module {
  Tensor w;
  explicit TiedImpl(const Tensor& tensor) {
    w = register_parameter("w", tensor);
  }
};
TORCH_MODULE(Tied);

struct NetImpl : nn::Module {
  Block a{nullptr}, b{nullptr};
  nn::Linear c{nullptr};
  Tied tied{nullptr};

  NetImpl() {
    a = register_module("a", Block(6, 8));
    b = register_module("b", Block(8, 8));
    c = register_module("c", nn::Linear(8, 3));
  }
  Tensor forward(const Tensor& x) { return c(b(a(x))); }
};

inline NetImpl& as_net(nn::Module& module) {
  return dynamic_cast<NetImpl&>(module);
}
inline Model make_net() { return std::make_shared<NetImpl>(); }
inline const std::vector<std::string> kUnits = {"a", "b"};

inline Tensor input(int rank, int step) {
  return noise(100 + 10 * rank + step, {5, 6});
}
inline Tensor input(const Turn& turn) { return input(turn.rank, turn.step); }

inline Tensor square_loss(const Tensor& output) { return output.pow(2).mean(); }
inline Tensor plain_loss(nn::Module& module, const Turn& turn) {
  return square_loss(as_net(module).forward(input(turn)));
}

/// `turn`, `by` steps later: other inputs.
inline Turn later(const Turn& turn, int by) {
  return {turn.rank, turn.step + by, turn.share};
}

/// The gradients of one process for the mean over `world_size` ranks.
inline Tensors gradients_of_one_process(int world_size, const Make& make,
                                        const Loss& loss, int step = 0) {
  Model model = build(make);
  const double share = 1.0 / world_size;
  for (int rank = 0; rank < world_size; ++rank) {
    (loss(*model, {rank, step, share}) * share).backward();
  }
  return plain_gradients(*model);
}

}  // namespace tessera::test
