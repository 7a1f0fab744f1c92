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

/// Whose code runs: that of a GPU keeps less than LibTorch's of a CPU, where
/// RMSNorm and dropout are several operators.
enum class Kernels { cuda, cpu };

struct ForwardShape {
  int64_t batch = 1;  // sequences
  int64_t seq = 1;    // tokens of each
  int64_t compute_bytes = 4;
  Kernels kernels = Kernels::cuda;

  [[nodiscard]] int64_t tokens() const { return batch * seq; }
};

/// Bytes that autograd keeps from forward to backward: of each operator the
/// inputs and outputs that its backward reads, each storage once. Weights are
/// not counted. By ModelConfig::kernels, recompute and dropout.
struct ActivationBytes {
  int64_t embedding = 0;  // tokens, positions, and tables in the compute dtype
  int64_t norm = 0;       // the last one
  int64_t head = 0;       // its input
};
[[nodiscard]] ActivationBytes activations_of(const ModelConfig& model,
                                             const ForwardShape& shape);

struct BlockBytes {
  int64_t kept = 0;
  // What its backward makes again, and frees when it is through.
  int64_t again = 0;
  // Of what is kept: in host memory in between, and what it takes there.
  int64_t offloaded = 0;
  int64_t on_host = 0;
};
/// The block with this index.
[[nodiscard]] BlockBytes block_bytes(const ModelConfig& model,
                                     const ForwardShape& shape, int64_t index);

/// ... of the whole model up to the logits, without them and what is offloaded.
[[nodiscard]] int64_t activation_bytes(const ModelConfig& model,
                                       const ForwardShape& shape);
/// What the host has of all blocks.
[[nodiscard]] int64_t host_bytes(const ModelConfig& model,
                                 const ForwardShape& shape);

struct LogitsBytes {
  int64_t kept = 0;  // from forward to backward
  // The most, when the loss is computed or its backward begins: for plain
  // kernels the log-softmax of the logits and two gradients, in fp32.
  int64_t peak = 0;
  int64_t left = 0;  // the gradient that the head's backward reads
};
[[nodiscard]] LogitsBytes logits_bytes(const ModelConfig& model,
                                       const ForwardShape& shape);

/// Tables of the model that are no parameters, on every rank: of rotary
/// positions, in fp32.
[[nodiscard]] int64_t table_bytes(const ModelConfig& model);

}  // namespace tessera::train
