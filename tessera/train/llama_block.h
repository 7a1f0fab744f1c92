// One block of a Llama-type model.
//
//   x: the residual stream ----------------+--------------------------+
//        | input_layernorm                 |                          |
//        q, k, v, turned                   |                          |
//        | attention, o_proj               |                          |
//        + <-------------------------------+ sum                      |
//        | post_attention_layernorm                                   |
//        gate, up, inner = swiglu(gate, up)                           |
//        | down_proj                                                  |
//        branch: what the next norm adds to the sum <-----------------+
//
// What backward computes again, by RecomputePolicy: `selective` the norms'
// outputs and `inner`; `offload` these, and q, k, v, the sum, gate and up are
// in host memory meanwhile; `block` all from x to `inner` in one region;
// `but_attention` the same in two, before and after attention. The last product
// is in none: it reads `inner`, which comes back when backward begins with it.
// With fused kernels what comes after attention is one function where it is
// recomputed (second_half.h).
#pragma once

#include <torch/nn/modules/linear.h>

#include <memory>
#include <vector>

#include "tessera/kernels/rms_norm.h"
#include "tessera/module/host_offload.h"
#include "tessera/module/recompute.h"
#include "tessera/train/functions.h"
#include "tessera/train/language_model.h"
#include "tessera/train/llama_layers.h"
#include "tessera/train/model_presets.h"
#include "tessera/train/second_half.h"

namespace tessera::train {

class LlamaBlockImpl : public torch::nn::Module {
 public:
  /// offload: of the model, for RecomputePolicy::offload; else null.
  LlamaBlockImpl(const ModelConfig& config, RecomputePolicy recompute,
                 std::shared_ptr<HostOffload> offload);
  /// cache: null where nothing is remembered.
  [[nodiscard]] Stream forward(const Stream& stream, const Rotary& rotary,
                               LayerCache* cache = nullptr);

 private:
  /// Behind attention, up to the last product.
  struct Widened {
    at::Tensor sum;  // the residual stream
    at::Tensor gate, up, inner;
  };

  [[nodiscard]] at::Tensor turn(const at::Tensor& x, int64_t heads,
                                const Rotary& rotary) const;
  [[nodiscard]] std::vector<at::Tensor> project(
      const at::Tensor& x, const std::vector<torch::nn::Linear>& layers) const;
  [[nodiscard]] at::Tensor project(const at::Tensor& x,
                                   const torch::nn::Linear& layer) const;
  /// Queries, keys and values, [B, N, width] each.
  [[nodiscard]] std::vector<at::Tensor> attention_inputs(const SumAndNorm& x,
                                                         const Rotary& rotary);
  /// Likewise, of what they were before their positions.
  [[nodiscard]] std::vector<at::Tensor> turned(
      const std::vector<at::Tensor>& projected, const Rotary& rotary) const;
  [[nodiscard]] at::Tensor attend(const std::vector<at::Tensor>& qkv,
                                  LayerCache* cache) const;
  [[nodiscard]] Widened widen(const at::Tensor& residual,
                              const at::Tensor& mixed);
  [[nodiscard]] Stream keeping(const Stream& stream, const Rotary& rotary,
                               LayerCache* cache);
  [[nodiscard]] Stream recomputing(const at::Tensor& x, const Rotary& rotary);
  [[nodiscard]] Stream recomputing_but_attention(const at::Tensor& x,
                                                 const Rotary& rotary);
  [[nodiscard]] Stream freeing_but_attention(const Stream& stream,
                                             const Rotary& rotary);
  /// Whether what comes behind attention can be one function.
  [[nodiscard]] bool takes_second_half(const at::Tensor& residual) const;
  [[nodiscard]] SecondHalfWeights second_half_weights() const;
  [[nodiscard]] SumAndBranch behind_attention(const at::Tensor& residual,
                                              const at::Tensor& mixed,
                                              SecondHalfKeeps keeps) const;
  /// {sum, branch}, and in training `kept` on the host where the policy says
  /// so.
  [[nodiscard]] Stream keeping_on_host(std::vector<at::Tensor> kept,
                                       const at::Tensor& sum,
                                       const at::Tensor& branch,
                                       const LayerCache* cache) const;
  /// Whether norms and SwiGLU are computed again one by one.
  [[nodiscard]] bool lightens() const;
  /// Behind attention, in a region.
  [[nodiscard]] Stream widening_again(const at::Tensor& residual,
                                      const at::Tensor& mixed);
  /// {sum, inner} of a region, and the product after it.
  [[nodiscard]] Stream narrow(const RecomputedOutputs& widened);
  [[nodiscard]] RecomputeOptions region_options() const;
  /// Where the policy says so, the norm is computed again in backward.
  void drop_norm(const RMSNorm& norm_of, const SumAndNorm& x,
                 const std::vector<at::Tensor>& users) const;

  [[nodiscard]] at::Tensor added(const at::Tensor& x) const;

  ModelKernels kernels_;
  RecomputePolicy recompute_;
  std::shared_ptr<HostOffload> offload_;
  int64_t heads_, kv_heads_;
  double dropout_;
  RMSNorm input_layernorm_, post_attention_layernorm_;
  torch::nn::Linear q_proj_, k_proj_, v_proj_, o_proj_;
  torch::nn::Linear gate_proj_, up_proj_, down_proj_;
};
TORCH_MODULE(LlamaBlock);

}  // namespace tessera::train
