// The model of the fixtures that Python wrote: two linear layers, one parameter
// of one element, and a buffer.
#pragma once

#include <torch/torch.h>

#include <cstring>
#include <functional>
#include <map>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/reader.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/optim/adamw.h"
#include "tessera/shard/fully_shard.h"

namespace tessera::checkpoint {

struct Block : torch::nn::Module {
  torch::Tensor gain, offset;
  torch::nn::Linear up, down;

  explicit Block(int64_t width = 5, int64_t out = 7)
      : up(3, width), down(width, out) {
    gain = register_parameter("gain", torch::full({1}, 50.0));
    register_module("up", up);
    register_module("down", down);
    offset = register_buffer("offset", torch::zeros(3));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return down(torch::relu(up(x))) * gain;
  }
};

/// A block with values that depend on `seed` alone, cut over the ranks of
/// `world` (not at all without one), and its optimizer with two groups.
struct Trained {
  std::shared_ptr<Block> block;
  std::unique_ptr<torch::optim::Optimizer> optimizer;

  /// How it is cut over the ranks of a world.
  using Cut = std::function<FullyShardOptions(const World&)>;
  static FullyShardOptions along_rows(const World& world) {
    return {.mesh = init_device_mesh(world)};
  }

  Trained(const World& world, int seed, const Cut& cut = along_rows)
      : block(std::make_shared<Block>()) {
    int64_t at = seed;
    for (const torch::Tensor& parameter : block->parameters()) {
      const torch::NoGradGuard no_grad;
      parameter.copy_(
          torch::arange(at, at + parameter.numel()).view(parameter.sizes()) /
          64.0);
      at += parameter.numel();
    }
    if (world.defined()) {
      fully_shard(*block, cut(world));
    }
    using torch::optim::AdamWOptions;
    std::map<std::string, torch::Tensor> named;
    for (const auto& item : block->named_parameters()) {
      named[item.key()] = item.value();
    }
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(
        std::vector{named.at("up.weight"), named.at("down.weight")},
        std::make_unique<AdamWOptions>(AdamWOptions(1e-2)));
    groups.emplace_back(
        std::vector{named.at("up.bias")},
        std::make_unique<AdamWOptions>(AdamWOptions(1e-3).weight_decay(0)));
    optimizer = std::make_unique<AdamW>(groups);
  }

  /// One step on all of a fixed batch; the same for every number of ranks, up
  /// to rounding.
  void step(int64_t number) {
    const torch::Tensor x =
        torch::arange(number, number + 12, torch::kFloat).view({4, 3}) / 16;
    block->forward(x).pow(2).mean().backward();
    optimizer->step();
    optimizer->zero_grad();
  }
};

/// What is different between the tensors and values of two checkpoints, or "".
inline std::string difference(const std::string& a, const std::string& b) {
  const CheckpointReader left(a);
  const CheckpointReader right(b);
  const auto bytes_of = [](const CheckpointReader& reader,
                           const std::string& key, const StoredTensor& tensor) {
    std::vector<std::byte> bytes(*num_bytes_of(tensor.dtype, tensor.sizes));
    reader.read_box(key, whole_box(tensor.sizes), bytes);
    return bytes;
  };
  if (left.metadata().paths != right.metadata().paths) return "other paths";
  for (const auto& [key, tensor] : left.metadata().tensors) {
    const auto& other = right.metadata().tensors;
    if (!other.contains(key)) return "no tensor " + key;
    if (other.at(key).dtype != tensor.dtype) return "other dtype of " + key;
    if (other.at(key).sizes != tensor.sizes) return "other size of " + key;
    if (bytes_of(left, key, tensor) != bytes_of(right, key, other.at(key))) {
      return "other bytes of " + key;
    }
  }
  for (const auto& [key, place] : left.metadata().values) {
    const Value value = left.read_value(key, OnUnknown::refuse);
    const Value other = right.read_value(key, OnUnknown::refuse);
    if (value != other) {
      return str(key, " is ", value.show(), " and ", other.show());
    }
  }
  return "";
}

}  // namespace tessera::checkpoint
