// What the memory plan knows of the trainer's models: the shapes of their
// units, and what one forward leaves for the backward.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/train/model_presets.h"

namespace tessera::train {

/// `count` units with the same parameters, in the order of their modules.
struct UnitShapes {
  std::string name;
  int64_t count = 1;
  std::vector<std::vector<int64_t>> shapes;
};

/// In the order of the forward; the root comes last. A tied head has no unit.
[[nodiscard]] std::vector<UnitShapes> unit_shapes(const ModelConfig& model);

/// The kernels of a GPU keep less than LibTorch's CPU code: RMSNorm is one
/// kernel there, and several operators on a CPU.
enum class Kernels { cuda, cpu };

struct ForwardShape {
  int64_t batch = 1;  // sequences
  int64_t seq = 1;    // tokens of each
  int64_t compute_bytes = 4;
  Kernels kernels = Kernels::cuda;

  [[nodiscard]] int64_t tokens() const { return batch * seq; }
};

/// Bytes that autograd keeps of one block from forward to backward: of each
/// operator the inputs and outputs that its backward reads, each storage once.
/// Weights are not counted. Exact with fp32, and on a GPU with bf16.
[[nodiscard]] int64_t block_activation_bytes(const ModelConfig& model,
                                             const ForwardShape& shape);

/// ... and of the whole model up to the logits, without them.
[[nodiscard]] int64_t activation_bytes(const ModelConfig& model,
                                       const ForwardShape& shape);

/// The most that the loss takes, when its backward begins: the log-softmax of
/// the logits and two gradients, in fp32. The logits themselves are gone then.
[[nodiscard]] int64_t logits_bytes(const ModelConfig& model,
                                   const ForwardShape& shape);

}  // namespace tessera::train
