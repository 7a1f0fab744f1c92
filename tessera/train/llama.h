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

#include <memory>
#include <vector>

#include "tessera/module/host_offload.h"
#include "tessera/train/functions.h"
#include "tessera/train/language_model.h"
#include "tessera/train/llama_block.h"
#include "tessera/train/model_presets.h"

namespace tessera::train {

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
  [[nodiscard]] const at::Tensor& head() const;

  ModelKernels kernels_;
  std::shared_ptr<HostOffload> offload_;  // null: no block needs it
  torch::nn::Embedding embed_tokens_;
  torch::nn::ModuleList layers_;
  RMSNorm norm_;
  torch::nn::Linear lm_head_;  // empty when tied
  Rotary rotary_;
  double dropout_;
};
TORCH_MODULE(Llama);

}  // namespace tessera::train
