// A GPT-2 type model of plain torch::nn layers.
//
//   tokens [B, N] -> wte + wpe -> h.0 ... -> ln_f -> logits
//
//   h.i:  x + attn.c_proj(attention(attn.c_attn(ln_1(x))))
//         x + mlp.c_proj(gelu(mlp.c_fc(ln_2(x))))
//
// Positions have learned vectors (wpe). A tied head multiplies by wte.weight;
// an untied one is lm_head.
#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "tessera/train/language_model.h"
#include "tessera/train/model_presets.h"

namespace tessera::train {

class Gpt2AttentionImpl : public torch::nn::Module {
 public:
  explicit Gpt2AttentionImpl(const ModelConfig& config);
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, LayerCache* cache);

 private:
  int64_t heads_;
  torch::nn::Linear c_attn_, c_proj_;
};
TORCH_MODULE(Gpt2Attention);

class Gpt2MlpImpl : public torch::nn::Module {
 public:
  explicit Gpt2MlpImpl(const ModelConfig& config);
  [[nodiscard]] at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::Linear c_fc_, c_proj_;
};
TORCH_MODULE(Gpt2Mlp);

class Gpt2BlockImpl : public torch::nn::Module {
 public:
  explicit Gpt2BlockImpl(const ModelConfig& config);
  /// cache: null where nothing is remembered.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x,
                                   LayerCache* cache = nullptr);

 private:
  torch::nn::LayerNorm ln_1_;
  Gpt2Attention attn_;
  torch::nn::LayerNorm ln_2_;
  Gpt2Mlp mlp_;
  double dropout_;
};
TORCH_MODULE(Gpt2Block);

class Gpt2Impl : public LanguageModel {
 public:
  explicit Gpt2Impl(const ModelConfig& config);
  [[nodiscard]] at::Tensor forward(const at::Tensor& tokens) override;
  [[nodiscard]] at::Tensor extend(const at::Tensor& tokens,
                                  KeyValueCache& cache) override;
  [[nodiscard]] std::vector<torch::nn::Module*> units() override;

 private:
  at::Tensor run(const at::Tensor& tokens, KeyValueCache* cache);
  torch::nn::Embedding wte_, wpe_;
  torch::nn::ModuleList h_;
  torch::nn::LayerNorm ln_f_;
  torch::nn::Linear lm_head_;  // empty when tied
  double dropout_;
};
TORCH_MODULE(Gpt2);

}  // namespace tessera::train
