// Models and batches that are small enough for a test.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <array>
#include <vector>

#include "tessera/mesh/device_mesh.h"
#include "tessera/train/build_model_meta.h"
#include "tessera/train/train_step.h"

namespace tessera::train::test {

inline const std::array<ModelConfig, 2> kSmallModels = {
    ModelConfig{.architecture = Architecture::llama,
                .vocab = 11,
                .dim = 16,
                .layers = 2,
                .heads = 4,
                .kv_heads = 2,
                .ffn = 24,
                .seq = 9,
                .tied = false},
    ModelConfig{.architecture = Architecture::gpt2,
                .vocab = 11,
                .dim = 16,
                .layers = 2,
                .heads = 4,
                .kv_heads = 4,
                .ffn = 24,
                .seq = 9,
                .tied = true}};

inline LanguageModelPtr sharded(const ModelConfig& config,
                                const DeviceMesh& mesh,
                                const ShardConfig& how = {}) {
  auto model = build_model_meta(config);
  shard_model(*model, how, mesh);
  draw_weights(*model, {.seed = 7, .std = 0.2, .layers = config.layers});
  return model;
}

/// `rows` sequences of random tokens; the same for the same seed.
inline Batch random_batch(const ModelConfig& config, int64_t rows,
                          uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const auto tokens = torch::randint(0, config.vocab, {rows, config.seq + 1},
                                     generator, torch::kLong);
  return {tokens.narrow(1, 0, config.seq).contiguous(),
          tokens.narrow(1, 1, config.seq).contiguous()};
}

}  // namespace tessera::train::test
