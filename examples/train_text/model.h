// A Llama-type language model of plain torch::nn layers. All that it knows of
// Tessera is that its own layer with weights, RMSNorm, says how they begin.
//
//   tokens [batch, seq] -> embed -> layers x Block -> norm -> lm_head
//                                   -> logits [batch, seq, vocab]
//
// A Block is RMSNorm, causal attention with rotary positions, RMSNorm, SwiGLU.
// Parameter names are those of Hugging Face's Llama.
#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>

#include "tessera/module/initializers.h"

namespace train_text {

struct ModelConfig {
  int64_t vocab = 256;  // bytes
  int64_t dim = 128;
  int64_t layers = 3;
  int64_t heads = 4;
  int64_t kv_heads = 4;  // fewer than heads: groups of heads share keys
  int64_t ffn = 352;
  int64_t seq = 128;  // the longest sequence
  double rope_base = 10000.0;
};

/// What turns queries and keys by their position: [seq, head_dim] each.
struct Rotary {
  torch::Tensor cos;
  torch::Tensor sin;
};

/// Angle of position p and pair i: p / base^(2i / head_dim). The pairs are
/// (i, i + head_dim / 2).
[[nodiscard]] Rotary make_rotary(int64_t seq, int64_t head_dim, double base);

/// Turns x [..., seq, head_dim]. The dot product of two turned vectors depends
/// on the distance of their positions alone.
[[nodiscard]] torch::Tensor rotate(const torch::Tensor& x,
                                   const Rotary& rotary);

class RMSNormImpl : public torch::nn::Module, public tessera::Initializable {
 public:
  explicit RMSNormImpl(int64_t dim);
  void reset_parameters() override;
  torch::Tensor forward(const torch::Tensor& x);

  torch::Tensor weight;
};
TORCH_MODULE(RMSNorm);

class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(const ModelConfig& config);
  torch::Tensor forward(const torch::Tensor& x, const Rotary& rotary);

 private:
  torch::Tensor attention(const torch::Tensor& x, const Rotary& rotary);
  torch::Tensor feed_forward(const torch::Tensor& x);

  int64_t heads_, kv_heads_;
  RMSNorm input_layernorm_, post_attention_layernorm_;
  torch::nn::Linear q_proj_, k_proj_, v_proj_, o_proj_;
  torch::nn::Linear gate_proj_, up_proj_, down_proj_;
};
TORCH_MODULE(Block);

class LlamaImpl : public torch::nn::Module {
 public:
  explicit LlamaImpl(const ModelConfig& config);

  /// tokens: [batch, n] int64, n <= config.seq. Returns [batch, n, vocab].
  torch::Tensor forward(const torch::Tensor& tokens);

  torch::nn::Embedding embed_tokens;
  torch::nn::ModuleList layers;
  RMSNorm norm;
  torch::nn::Linear lm_head;

 private:
  Rotary rotary_;
};
TORCH_MODULE(Llama);

}  // namespace train_text
