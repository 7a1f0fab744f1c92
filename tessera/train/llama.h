// A Llama-type model of plain torch::nn layers.
//
//   tokens [B, N] -> embed_tokens -> layers.0 ... -> norm -> lm_head -> logits
//
//   layers.i:  x + o_proj(attention(q_proj, k_proj, v_proj of input_layernorm))
//              h + down_proj(swiglu(gate_proj, up_proj of
//                                   post_attention_layernorm))
//
// Queries and keys are turned by their position. A tied head has no lm_head: it
// multiplies by embed_tokens.weight. A block leaves the last add to the norm
// that comes next, so that both are one kernel where ModelConfig says fused.
#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "tessera/kernels/rms_norm.h"
#include "tessera/module/initializers.h"
#include "tessera/train/functions.h"
#include "tessera/train/language_model.h"
#include "tessera/train/model_presets.h"

namespace tessera::train {

/// The residual stream: the sum of both, still to be added. `branch` is
/// undefined where nothing is to be added.
struct Stream {
  at::Tensor residual, branch;
};

class RMSNormImpl : public torch::nn::Module, public Initializable {
 public:
  explicit RMSNormImpl(const ModelConfig& config);
  void reset_parameters() override;
  /// The stream, added up, and its norm.
  [[nodiscard]] SumAndNorm forward(const Stream& stream);
  [[nodiscard]] at::Tensor norm(const at::Tensor& x) const;

  at::Tensor weight;

 private:
  double eps_;
  ModelKernels kernels_;
};
TORCH_MODULE(RMSNorm);

class LlamaBlockImpl : public torch::nn::Module {
 public:
  explicit LlamaBlockImpl(const ModelConfig& config);
  /// cache: null where nothing is remembered.
  [[nodiscard]] Stream forward(const Stream& stream, const Rotary& rotary,
                               LayerCache* cache = nullptr);

 private:
  at::Tensor turn(const at::Tensor& x, const Rotary& rotary) const;
  at::Tensor attend(const SumAndNorm& x, const Rotary& rotary,
                    LayerCache* cache);
  at::Tensor feed_forward(const SumAndNorm& x);
  [[nodiscard]] std::vector<at::Tensor> project(
      const at::Tensor& x, const std::vector<torch::nn::Linear>& layers) const;
  /// Where the policy says so, the norm is computed again in backward.
  void drop_norm(const RMSNorm& norm_of, const SumAndNorm& x,
                 const std::vector<at::Tensor>& users) const;

  [[nodiscard]] at::Tensor added(const at::Tensor& x) const;

  ModelKernels kernels_;
  RecomputePolicy recompute_;
  int64_t heads_, kv_heads_;
  double dropout_;
  RMSNorm input_layernorm_, post_attention_layernorm_;
  torch::nn::Linear q_proj_, k_proj_, v_proj_, o_proj_;
  torch::nn::Linear gate_proj_, up_proj_, down_proj_;
};
TORCH_MODULE(LlamaBlock);

class LlamaImpl : public LanguageModel {
 public:
  explicit LlamaImpl(const ModelConfig& config);
  [[nodiscard]] at::Tensor forward(const at::Tensor& tokens) override;
  [[nodiscard]] at::Tensor sum_of_losses(const at::Tensor& tokens,
                                         const at::Tensor& targets) override;
  [[nodiscard]] std::vector<torch::nn::Module*> units() override;
  [[nodiscard]] at::Tensor extend(const at::Tensor& tokens,
                                  KeyValueCache& cache) override;

 private:
  at::Tensor hidden(const at::Tensor& tokens, KeyValueCache* cache);
  Stream run(LlamaBlockImpl& block, const Stream& stream, const Rotary& rotary,
             LayerCache* cache);
  [[nodiscard]] const at::Tensor& head() const;

  ModelKernels kernels_;
  RecomputePolicy recompute_;
  torch::nn::Embedding embed_tokens_;
  torch::nn::ModuleList layers_;
  RMSNorm norm_;
  torch::nn::Linear lm_head_;  // empty when tied
  Rotary rotary_;
  double dropout_;
};
TORCH_MODULE(Llama);

}  // namespace tessera::train
