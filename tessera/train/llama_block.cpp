#include "tessera/train/llama_block.h"

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <utility>

#include "tessera/kernels/linear_each.h"
#include "tessera/kernels/rope.h"
#include "tessera/kernels/swiglu.h"
#include "tessera/module/free_until_backward.h"

namespace tessera::train {

using at::Tensor;

namespace {

Tensor multiplied(ModelKernels kernels, const Tensor& gate, const Tensor& up) {
  return kernels == ModelKernels::fused ? tessera::swiglu(gate, up)
                                        : train::swiglu(gate, up);
}

// LibTorch's own layers follow it.
bool is_autocast(const Tensor& x) {
  return at::autocast::is_autocast_enabled(x.device().type());
}

}  // namespace

LlamaBlockImpl::LlamaBlockImpl(const ModelConfig& c, RecomputePolicy recompute,
                               std::shared_ptr<HostOffload> offload)
    : kernels_(c.kernels),
      recompute_(recompute),
      offload_(std::move(offload)),
      heads_(c.heads),
      kv_heads_(c.kv_heads),
      dropout_(c.dropout),
      input_layernorm_(register_module("input_layernorm", RMSNorm(c))),
      post_attention_layernorm_(
          register_module("post_attention_layernorm", RMSNorm(c))),
      q_proj_(register_module("q_proj", linear(c.dim, c.dim))),
      k_proj_(register_module("k_proj",
                              linear(c.dim, c.dim / c.heads * c.kv_heads))),
      v_proj_(register_module("v_proj",
                              linear(c.dim, c.dim / c.heads * c.kv_heads))),
      o_proj_(register_module("o_proj", linear(c.dim, c.dim))),
      gate_proj_(register_module("gate_proj", linear(c.dim, c.ffn))),
      up_proj_(register_module("up_proj", linear(c.dim, c.ffn))),
      down_proj_(register_module("down_proj", linear(c.ffn, c.dim))) {}

Tensor LlamaBlockImpl::turn(const Tensor& x, int64_t heads,
                            const Rotary& rotary) const {
  const Tensor split = split_heads(x, heads);
  return join_heads(kernels_ == ModelKernels::fused
                        ? rope(split, rotary.cos, rotary.sin)
                        : rotate(split, rotary));
}

std::vector<Tensor> LlamaBlockImpl::project(
    const Tensor& x, const std::vector<torch::nn::Linear>& layers) const {
  std::vector<Tensor> results;
  if (kernels_ == ModelKernels::fused && !is_autocast(x)) {
    std::vector<Tensor> weights;
    for (const auto& layer : layers) weights.push_back(layer->weight);
    return linear_each(x, weights);
  }
  for (auto layer : layers) results.push_back(layer(x));
  return results;
}

Tensor LlamaBlockImpl::project(const Tensor& x,
                               const torch::nn::Linear& layer) const {
  return project(x, std::vector<torch::nn::Linear>{layer})[0];
}

bool LlamaBlockImpl::lightens() const {
  return recompute_ == RecomputePolicy::selective ||
         recompute_ == RecomputePolicy::offload;
}

void LlamaBlockImpl::drop_norm(const RMSNorm& norm_of, const SumAndNorm& x,
                               const std::vector<Tensor>& users) const {
  if (!lightens()) return;
  free_until_backward(x.norm, users,
                      [norm_of, sum = x.sum] { return norm_of->norm(sum); });
}

std::vector<Tensor> LlamaBlockImpl::attention_inputs(const SumAndNorm& x,
                                                     const Rotary& rotary) {
  const auto projected = project(x.norm, {q_proj_, k_proj_, v_proj_});
  drop_norm(input_layernorm_, x, projected);
  return turned(projected, rotary);
}

std::vector<Tensor> LlamaBlockImpl::turned(const std::vector<Tensor>& projected,
                                           const Rotary& rotary) const {
  return {turn(projected[0], heads_, rotary),
          turn(projected[1], kv_heads_, rotary), projected[2]};
}

Tensor LlamaBlockImpl::attend(const std::vector<Tensor>& qkv,
                              LayerCache* cache) const {
  KeyValues seen = {split_heads(qkv[1], kv_heads_),
                    split_heads(qkv[2], kv_heads_)};
  if (cache != nullptr) seen = cache->append(seen);
  return join_heads(
      causal_attention(split_heads(qkv[0], heads_), seen.keys, seen.values));
}

LlamaBlockImpl::Widened LlamaBlockImpl::widen(const Tensor& residual,
                                              const Tensor& mixed) {
  const auto h = post_attention_layernorm_(
      Stream{residual, added(project(mixed, o_proj_))});
  const auto both = project(h.norm, {gate_proj_, up_proj_});
  drop_norm(post_attention_layernorm_, h, both);
  return {h.sum, both[0], both[1], multiplied(kernels_, both[0], both[1])};
}

Stream LlamaBlockImpl::forward(const Stream& stream, const Rotary& rotary,
                               LayerCache* cache) {
  const bool in_regions = recompute_ == RecomputePolicy::block ||
                          recompute_ == RecomputePolicy::but_attention;
  if (!in_regions || cache != nullptr) return keeping(stream, rotary, cache);
  // The norm's kernel adds up, too, and keeps the sum, which is the input.
  if (recompute_ == RecomputePolicy::but_attention &&
      kernels_ == ModelKernels::fused) {
    return freeing_but_attention(stream, rotary);
  }
  // Added up before, so that one tensor is kept for a block and not two.
  const Tensor x = stream.branch.defined() ? stream.residual + stream.branch
                                           : stream.residual;
  return recompute_ == RecomputePolicy::block
             ? recomputing(x, rotary)
             : recomputing_but_attention(x, rotary);
}

Stream LlamaBlockImpl::keeping(const Stream& stream, const Rotary& rotary,
                               LayerCache* cache) {
  const auto x = input_layernorm_(stream);
  auto kept = attention_inputs(x, rotary);
  const Tensor mixed = attend(kept, cache);
  if (recompute_ != RecomputePolicy::offload) kept.clear();
  if (lightens() && cache == nullptr && takes_second_half(x.sum)) {
    const SumAndBranch out =
        behind_attention(x.sum, mixed, SecondHalfKeeps::sum_gate_and_up);
    kept.insert(kept.end(), out.kept.begin(), out.kept.end());
    return keeping_on_host(std::move(kept), out.sum, out.branch, cache);
  }
  const Widened w = widen(x.sum, mixed);
  const Tensor out = project(w.inner, down_proj_);
  kept.insert(kept.end(), {w.gate, w.up});
  const Stream result =
      keeping_on_host(std::move(kept), w.sum, added(out), cache);
  // Behind it: SwiGLU needs gate and up back.
  if (lightens()) {
    free_until_backward(w.inner, {out},
                        [kernels = kernels_, gate = w.gate, up = w.up] {
                          return multiplied(kernels, gate, up);
                        });
  }
  return result;
}

Stream LlamaBlockImpl::keeping_on_host(std::vector<Tensor> kept,
                                       const Tensor& sum, const Tensor& branch,
                                       const LayerCache* cache) const {
  if (recompute_ == RecomputePolicy::offload && cache == nullptr) {
    kept.push_back(sum);
    offload_->keep(kept, {sum, branch});
  }
  return {sum, branch};
}

Stream LlamaBlockImpl::recomputing(const Tensor& x, const Rotary& rotary) {
  return narrow(recompute_outputs(
      [this, rotary](const TensorVector& in) -> TensorVector {
        const auto normed = input_layernorm_(Stream{in[0], {}});
        const Widened w = widen(
            normed.sum, attend(attention_inputs(normed, rotary), nullptr));
        return {w.sum, w.inner};
      },
      {x}, region_options()));
}

Stream LlamaBlockImpl::recomputing_but_attention(const Tensor& x,
                                                 const Rotary& rotary) {
  const auto qkv = recompute_outputs(
      [this, rotary](const TensorVector& in) {
        return attention_inputs(input_layernorm_(Stream{in[0], {}}), rotary);
      },
      {x}, {.random = RecomputeOptions::Random::none});
  const Tensor mixed = attend(qkv.values, nullptr);
  for (size_t i = 0; i < qkv.values.size(); ++i) {
    free_until_backward(qkv.values[i], {mixed},
                        [again = qkv.again, i] { return again(i); });
  }
  return widening_again(x, mixed);
}

// As recomputing_but_attention, but the norm is no part of a region: its
// backward adds the gradients of its input up in its own pass.
Stream LlamaBlockImpl::freeing_but_attention(const Stream& stream,
                                             const Rotary& rotary) {
  const SumAndNorm x = input_layernorm_(stream);
  const auto projected = project(x.norm, {q_proj_, k_proj_, v_proj_});
  const auto qkv = turned(projected, rotary);
  const Tensor mixed = attend(qkv, nullptr);
  // Made again at once, and taken one by one.
  const auto again = [this, sum = x.sum, rotary,
                      made = std::make_shared<TensorVector>()](size_t i) {
    if (made->empty() || !made->at(i).defined()) {
      *made = attention_inputs({sum, input_layernorm_->norm(sum)}, rotary);
    }
    return std::exchange(made->at(i), Tensor());
  };
  for (size_t i = 0; i < qkv.size(); ++i) {
    free_until_backward(qkv[i], {mixed}, [again, i] { return again(i); });
  }
  // Once more behind attention, whose backward needs much memory.
  free_until_backward(x.norm, projected, [this, sum = x.sum] {
    return input_layernorm_->norm(sum);
  });
  if (!takes_second_half(x.sum)) return widening_again(x.sum, mixed);
  const auto out = behind_attention(x.sum, mixed, SecondHalfKeeps::nothing);
  return {out.sum, out.branch};
}

// Dropout, autocast and weights of several dtypes are for operators of their
// own.
bool LlamaBlockImpl::takes_second_half(const Tensor& residual) const {
  if (kernels_ != ModelKernels::fused || dropout_ > 0 || is_autocast(residual))
    return false;
  const auto w = second_half_weights();
  return std::ranges::all_of(
      std::initializer_list<Tensor>{w.output, w.norm, w.gate, w.up, w.down},
      [&](const Tensor& weight) {
        return weight.scalar_type() == residual.scalar_type();
      });
}

SecondHalfWeights LlamaBlockImpl::second_half_weights() const {
  return {o_proj_->weight, post_attention_layernorm_->weight,
          gate_proj_->weight, up_proj_->weight, down_proj_->weight};
}

SumAndBranch LlamaBlockImpl::behind_attention(const Tensor& residual,
                                              const Tensor& mixed,
                                              SecondHalfKeeps keeps) const {
  return second_half(residual, mixed, second_half_weights(),
                     post_attention_layernorm_->eps(), keeps);
}

Stream LlamaBlockImpl::widening_again(const Tensor& residual,
                                      const Tensor& mixed) {
  return narrow(recompute_outputs(
      [this](const TensorVector& in) -> TensorVector {
        const Widened w = widen(in[0], in[1]);
        return {w.sum, w.inner};
      },
      {residual, mixed}, region_options()));
}

Stream LlamaBlockImpl::narrow(const RecomputedOutputs& widened) {
  const Tensor& inner = widened.values[1];
  const Tensor out = project(inner, down_proj_);
  free_until_backward(inner, {out},
                      [again = widened.again] { return again(1); });
  return {widened.values[0], added(out)};
}

RecomputeOptions LlamaBlockImpl::region_options() const {
  return {.random = dropout_ > 0 ? RecomputeOptions::Random::kept
                                 : RecomputeOptions::Random::none};
}

/// What a half of the block adds to the residual stream.
Tensor LlamaBlockImpl::added(const Tensor& x) const {
  return dropout(x, dropout_, mode_of(*this));
}

}  // namespace tessera::train
