#include "tessera/train/plan_model.h"

#include <algorithm>

#include "tessera/module/offload_timeline.h"

namespace tessera::train {
namespace {

using Shapes = std::vector<std::vector<int64_t>>;

constexpr int64_t kFloatBytes = 4;
constexpr int64_t kIndexBytes = 8;
constexpr int64_t kRandomStateBytes = 5056;  // of a CPU's generator

int64_t kv_dim_of(const ModelConfig& m) { return m.dim / m.heads * m.kv_heads; }

Shapes llama_block(const ModelConfig& m) {
  const int64_t kv_dim = kv_dim_of(m);
  return {{m.dim},                           // input_layernorm
          {m.dim},                           // post_attention_layernorm
          {m.dim, m.dim},                    // q_proj
          {kv_dim, m.dim}, {kv_dim, m.dim},  // k_proj, v_proj
          {m.dim, m.dim},                    // o_proj
          {m.ffn, m.dim},  {m.ffn, m.dim},   // gate_proj, up_proj
          {m.dim, m.ffn}};                   // down_proj
}

Shapes gpt2_block(const ModelConfig& m) {
  return {{m.dim},
          {m.dim},  // ln_1
          {3 * m.dim, m.dim},
          {3 * m.dim},  // attn.c_attn
          {m.dim, m.dim},
          {m.dim},  // attn.c_proj
          {m.dim},
          {m.dim},  // ln_2
          {m.ffn, m.dim},
          {m.ffn},  // mlp.c_fc
          {m.dim, m.ffn},
          {m.dim}};  // mlp.c_proj
}

bool is_fused(const ModelConfig& m) {
  return m.architecture == Architecture::llama &&
         m.kernels == ModelKernels::fused;
}

/// RMSNorm of a CPU is made of operators that keep the normalised input, in
/// fp32, and of an input in bf16 its copy in fp32.
bool is_composite(const ModelConfig& m, const ForwardShape& s) {
  return s.kernels == Kernels::cpu && !is_fused(m);
}

/// What a norm keeps, its output left out.
int64_t norm_bytes(const ModelConfig& m, const ForwardShape& s) {
  const int64_t vector = s.tokens() * m.dim;
  const int64_t input = vector * s.compute_bytes;
  if (m.architecture == Architecture::gpt2) {
    // Mean and reciprocal deviation; a CPU has them in the compute dtype.
    const int64_t each =
        s.kernels == Kernels::cpu ? s.compute_bytes : kFloatBytes;
    return input + s.tokens() * 2 * each;
  }
  const int64_t deviation = s.tokens() * kFloatBytes;
  if (!is_composite(m, s)) return input + deviation;
  return 2 * vector * kFloatBytes + deviation;  // the input in fp32, normalised
}

/// Inputs of norms that live on for the norms to be computed again, though the
/// norms keep a copy of another dtype.
int64_t held_for_again(const ModelConfig& m, const ForwardShape& s) {
  const bool copied = is_composite(m, s) && s.compute_bytes != kFloatBytes;
  return copied ? 2 * s.tokens() * m.dim * s.compute_bytes : 0;
}

/// Log of the sum of a query's weights, fp32.
int64_t attention_bytes(const ModelConfig& m, const ForwardShape& s) {
  return s.tokens() * m.heads * kFloatBytes;
}

/// Elements that a block keeps for each token, but for its norms' own.
int64_t block_elements(const ModelConfig& m) {
  if (m.architecture == Architecture::gpt2) {
    // two norms, q k v, attention's output; fc, gelu(fc)
    return (2 + 3 + 1) * m.dim + 2 * m.ffn;
  }
  // Two norms, turned q, attention's output; turned k, v; gate, up, their
  // product, and of plain kernels silu(gate).
  const int64_t inner = is_fused(m) ? 3 : 4;
  return (2 + 1 + 1) * m.dim + 2 * kv_dim_of(m) + inner * m.ffn;
}

/// Which elements a dropout has kept: a CPU has factors of the compute dtype.
int64_t dropout_bytes(const ModelConfig& m, const ForwardShape& s) {
  if (m.dropout == 0) return 0;
  return s.tokens() * m.dim * (s.kernels == Kernels::cpu ? s.compute_bytes : 1);
}

/// All of a block, nothing recomputed.
int64_t whole_block_bytes(const ModelConfig& m, const ForwardShape& s) {
  return s.tokens() * block_elements(m) * s.compute_bytes +
         2 * norm_bytes(m, s) + attention_bytes(m, s) + 2 * dropout_bytes(m, s);
}

BlockBytes selective_bytes(const ModelConfig& m, const ForwardShape& s) {
  const int64_t vector = s.tokens() * m.dim * s.compute_bytes;
  const int64_t product = s.tokens() * m.ffn * s.compute_bytes;
  return {.kept = whole_block_bytes(m, s) + held_for_again(m, s) - 2 * vector -
                  product,
          .again = product};
}

/// As above, with q, k, v, the sum behind attention, gate and up on the host.
BlockBytes offload_bytes(const ModelConfig& m, const ForwardShape& s) {
  BlockBytes bytes = selective_bytes(m, s);
  for (const int64_t width :
       {m.dim, m.dim, kv_dim_of(m), kv_dim_of(m), m.ffn, m.ffn}) {
    const int64_t value = s.tokens() * width * s.compute_bytes;
    bytes.offloaded += value;
    bytes.on_host += offload_host_bytes(value);
  }
  return bytes;
}

/// Of a block in regions. Its last dropout is behind them.
BlockBytes region_bytes(const ModelConfig& m, const ForwardShape& s,
                        int64_t attention) {
  const int64_t input = s.tokens() * m.dim * s.compute_bytes;
  const bool draws = m.dropout > 0 && s.kernels == Kernels::cpu;
  const int64_t dropped = dropout_bytes(m, s);
  return {.kept = input + attention + dropped + (draws ? kRandomStateBytes : 0),
          .again = whole_block_bytes(m, s) - attention - dropped};
}

int64_t embedding_bytes(const ModelConfig& m, const ForwardShape& s) {
  const int64_t tokens = s.tokens() * kIndexBytes;
  if (m.architecture == Architecture::gpt2) {
    return tokens + s.seq * kIndexBytes + dropout_bytes(m, s);
  }
  // Cosines and sines in the compute dtype, one pair for all blocks.
  const bool cast = !is_fused(m) && s.compute_bytes != kFloatBytes;
  const int64_t tables = cast ? 2 * s.seq * (m.dim / m.heads) : 0;
  return tokens + tables * s.compute_bytes + dropout_bytes(m, s);
}

/// linear_cross_entropy: tokens a part at a time, their gradients right away.
LogitsBytes fused_logits_bytes(const ModelConfig& m, const ForwardShape& s) {
  const int64_t most = std::max<int64_t>(1024, 2 * m.dim);
  const int64_t parts = (s.tokens() + most - 1) / most;
  const int64_t part = (s.tokens() + parts - 1) / parts;
  const int64_t matrix = m.vocab * m.dim;
  const int64_t hidden = s.tokens() * m.dim * s.compute_bytes;
  const int64_t sum = matrix * (parts > 1 ? kFloatBytes : s.compute_bytes);
  const int64_t logits = part * m.vocab * s.compute_bytes;
  LogitsBytes bytes{.kept = hidden + sum};
  bytes.left = hidden;
  // The hidden state, its gradient, and the weight's of the parts before.
  const int64_t begin = 2 * hidden + (parts > 1 ? sum : 0);
  int64_t work = parts > 1 ? 0 : sum;
  if (s.kernels == Kernels::cpu) {
    // The log-softmax, its exponential and a selection of it; of each token an
    // index, a loss, and whether it counts.
    const int64_t loss =
        part * (3 * m.vocab * kFloatBytes + kIndexBytes + kFloatBytes + 1);
    const bool narrow = parts > 1 && s.compute_bytes != kFloatBytes;
    work = std::max(loss, sum + (narrow ? matrix * s.compute_bytes : 0));
  }
  bytes.peak = std::max(begin + logits + work,
                        bytes.kept + hidden + matrix * s.compute_bytes);
  return bytes;
}

}  // namespace

std::vector<UnitShapes> unit_shapes(const ModelConfig& m) {
  const bool gpt2 = m.architecture == Architecture::gpt2;
  std::vector<UnitShapes> units;
  units.push_back({gpt2 ? "wte" : "embed_tokens", 1, {{m.vocab, m.dim}}});
  if (gpt2) units.push_back({"wpe", 1, {{m.seq, m.dim}}});
  units.push_back(
      {gpt2 ? "h" : "layers", m.layers, gpt2 ? gpt2_block(m) : llama_block(m)});
  if (!m.tied) units.push_back({"lm_head", 1, {{m.vocab, m.dim}}});
  units.push_back(
      {"root", 1, gpt2 ? Shapes{{m.dim}, {m.dim}} : Shapes{{m.dim}}});
  return units;
}

ActivationBytes activations_of(const ModelConfig& m, const ForwardShape& s) {
  const int64_t output = s.tokens() * m.dim * s.compute_bytes;
  return {.embedding = embedding_bytes(m, s),
          .norm = norm_bytes(m, s),
          .head = is_fused(m) ? 0 : output};
}

BlockBytes block_bytes(const ModelConfig& m, const ForwardShape& s,
                       int64_t index) {
  const int64_t attention =
      s.tokens() * m.dim * s.compute_bytes + attention_bytes(m, s);
  switch (recompute_of(m, index)) {
    case RecomputePolicy::none:
      break;
    case RecomputePolicy::selective:
      return selective_bytes(m, s);
    case RecomputePolicy::offload:
      return offload_bytes(m, s);
    case RecomputePolicy::but_attention: {
      BlockBytes bytes = region_bytes(m, s, attention);
      // The first norm is no part of a region, and keeps its deviation.
      if (is_fused(m)) bytes.kept += s.tokens() * kFloatBytes;
      return bytes;
    }
    case RecomputePolicy::block:
      return region_bytes(m, s, 0);
  }
  return {.kept = whole_block_bytes(m, s)};
}

int64_t activation_bytes(const ModelConfig& m, const ForwardShape& s) {
  const ActivationBytes bytes = activations_of(m, s);
  int64_t sum = bytes.embedding + bytes.norm + bytes.head;
  for (int64_t i = 0; i < m.layers; ++i) {
    const BlockBytes block = block_bytes(m, s, i);
    sum += block.kept - block.offloaded;
  }
  return sum;
}

int64_t host_bytes(const ModelConfig& m, const ForwardShape& s) {
  int64_t sum = 0;
  for (int64_t i = 0; i < m.layers; ++i) sum += block_bytes(m, s, i).on_host;
  return sum;
}

LogitsBytes logits_bytes(const ModelConfig& m, const ForwardShape& s) {
  if (is_fused(m)) return fused_logits_bytes(m, s);
  const int64_t elements = s.tokens() * m.vocab;
  return {.kept = elements * kFloatBytes,
          .peak = elements * 3 * kFloatBytes,
          .left = elements * s.compute_bytes};
}

int64_t table_bytes(const ModelConfig& m) {
  if (m.architecture == Architecture::gpt2) return 0;
  return 2 * m.seq * (m.dim / m.heads) * kFloatBytes;
}

}  // namespace tessera::train
