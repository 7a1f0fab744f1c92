// A Llama-type model of plain torch::nn layers.
//
//   tokens [B, N] -> embed_tokens -> layers.0 ... -> norm -> lm_head -> logits
//
//   layers.i:  x + o_proj(attention(q_proj, k_proj, v_proj of input_layernorm))
//              h + down_proj(swiglu(gate_proj, up_proj of
//                                   post_attention_layernorm))
//
// Queries and keys are turned by their position. A tied head has no lm_head: it
// multiplies by embed_tokens.weight.
#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "tessera/module/initializers.h"
#include "tessera/train/functions.h"
#include "tessera/train/language_model.h"
#include "tessera/train/model_presets.h"

namespace tessera::train {

class RMSNormImpl : public torch::nn::Module, public Initializable {
 public:
  RMSNormImpl(int64_t dim, double eps);
  void reset_parameters() override;
  [[nodiscard]] at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;

 private:
  double eps_;
};
TORCH_MODULE(RMSNorm);

class LlamaBlockImpl : public torch::nn::Module {
 public:
  explicit LlamaBlockImpl(const ModelConfig& config);
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const Rotary& rotary);

 private:
  at::Tensor attend(const at::Tensor& x, const Rotary& rotary);
  at::Tensor feed_forward(const at::Tensor& x);

  int64_t heads_, kv_heads_;
  RMSNorm input_layernorm_, post_attention_layernorm_;
  torch::nn::Linear q_proj_, k_proj_, v_proj_, o_proj_;
  torch::nn::Linear gate_proj_, up_proj_, down_proj_;
};
TORCH_MODULE(LlamaBlock);

class LlamaImpl : public LanguageModel {
 public:
  explicit LlamaImpl(const ModelConfig& config);
  [[nodiscard]] at::Tensor forward(const at::Tensor& tokens) override;
  [[nodiscard]] std::vector<torch::nn::Module*> units() override;

 private:
  torch::nn::Embedding embed_tokens_;
  torch::nn::ModuleList layers_;
  RMSNorm norm_;
  torch::nn::Linear lm_head_;  // empty when tied
  Rotary rotary_;
};
TORCH_MODULE(Llama);

}  // namespace tessera::train
