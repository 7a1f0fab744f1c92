#include "tessera/train/plan_model.h"

namespace tessera::train {
namespace {

using Shapes = std::vector<std::vector<int64_t>>;

constexpr int64_t kFloatBytes = 4;
constexpr int64_t kIndexBytes = 8;

Shapes llama_block(const ModelConfig& m) {
  const int64_t kv_dim = m.dim / m.heads * m.kv_heads;
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

/// Numbers that a norm keeps for each token beside its input, in fp32: the
/// reciprocal deviation, and LayerNorm the mean.
int64_t norm_bytes(const ModelConfig& m, const ForwardShape& s) {
  if (m.architecture == Architecture::gpt2) return s.tokens() * 2 * kFloatBytes;
  // On a CPU the normalised input is a tensor of its own.
  const int64_t scaled =
      s.kernels == Kernels::cpu ? s.tokens() * m.dim * kFloatBytes : 0;
  return s.tokens() * kFloatBytes + scaled;
}

/// Log of the sum of a query's weights, fp32.
int64_t attention_bytes(const ModelConfig& m, const ForwardShape& s) {
  return s.tokens() * m.heads * kFloatBytes;
}

/// Elements that a block keeps for each token.
int64_t block_elements(const ModelConfig& m) {
  if (m.architecture == Architecture::gpt2) {
    // x, ln_1(x), q k v, attention's output, x + it, ln_2; fc, gelu(fc)
    return (1 + 1 + 3 + 1 + 1 + 1) * m.dim + 2 * m.ffn;
  }
  const int64_t kv_dim = m.dim / m.heads * m.kv_heads;
  // x, norm(x), turned q, attention's output, x + it, norm; turned k, v; gate,
  // silu(gate), up, their product
  return (1 + 1 + 1 + 1 + 1 + 1) * m.dim + 2 * kv_dim + 4 * m.ffn;
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

int64_t block_activation_bytes(const ModelConfig& m, const ForwardShape& s) {
  return s.tokens() * block_elements(m) * s.compute_bytes +
         2 * norm_bytes(m, s) + attention_bytes(m, s);
}

int64_t activation_bytes(const ModelConfig& m, const ForwardShape& s) {
  // The last norm's input and output, which the head multiplies.
  const int64_t end =
      2 * s.tokens() * m.dim * s.compute_bytes + norm_bytes(m, s);
  const int64_t positions =
      m.architecture == Architecture::gpt2 ? s.seq * kIndexBytes : 0;
  const int64_t indices = s.tokens() * kIndexBytes + positions;
  return m.layers * block_activation_bytes(m, s) + end + indices;
}

int64_t logits_bytes(const ModelConfig& m, const ForwardShape& s) {
  return s.tokens() * m.vocab * 3 * kFloatBytes;
}

}  // namespace tessera::train
