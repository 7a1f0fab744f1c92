#include "tessera/train/llama.h"

#include <torch/torch.h>

#include "tessera/kernels/cross_entropy.h"
#include "tessera/kernels/linear_each.h"
#include "tessera/kernels/rope.h"
#include "tessera/kernels/swiglu.h"
#include "tessera/module/free_until_backward.h"
#include "tessera/module/recompute.h"

namespace tessera::train {

using at::Tensor;

namespace {

torch::nn::Linear linear(int64_t in, int64_t out) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
}

}  // namespace

RMSNormImpl::RMSNormImpl(const ModelConfig& c)
    : weight(register_parameter("weight", torch::empty(c.dim))),
      eps_(c.norm_eps),
      kernels_(c.kernels) {
  RMSNormImpl::reset_parameters();
}

void RMSNormImpl::reset_parameters() { torch::nn::init::ones_(weight); }

at::Tensor RMSNormImpl::norm(const at::Tensor& x) const {
  return kernels_ == ModelKernels::fused ? tessera::rms_norm(x, weight, eps_)
                                         : rms_norm(x, weight, eps_);
}

SumAndNorm RMSNormImpl::forward(const Stream& stream) {
  if (!stream.branch.defined()) return {stream.residual, norm(stream.residual)};
  if (kernels_ == ModelKernels::fused) {
    return add_rms_norm(stream.branch, stream.residual, weight, eps_);
  }
  const auto sum = stream.residual + stream.branch;
  return {sum, norm(sum)};
}

LlamaBlockImpl::LlamaBlockImpl(const ModelConfig& c)
    : kernels_(c.kernels),
      recompute_(c.recompute),
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

at::Tensor LlamaBlockImpl::turn(const at::Tensor& x,
                                const Rotary& rotary) const {
  return kernels_ == ModelKernels::fused ? rope(x, rotary.cos, rotary.sin)
                                         : rotate(x, rotary);
}

std::vector<Tensor> LlamaBlockImpl::project(
    const Tensor& x, const std::vector<torch::nn::Linear>& layers) const {
  std::vector<Tensor> results;
  if (kernels_ == ModelKernels::fused) {
    std::vector<Tensor> weights;
    for (const auto& layer : layers) weights.push_back(layer->weight);
    return linear_each(x, weights);
  }
  for (auto layer : layers) results.push_back(layer(x));
  return results;
}

void LlamaBlockImpl::drop_norm(const RMSNorm& norm_of, const SumAndNorm& x,
                               const std::vector<at::Tensor>& users) const {
  if (recompute_ != RecomputePolicy::selective) return;
  free_until_backward(x.norm, users,
                      [norm_of, sum = x.sum] { return norm_of->norm(sum); });
}

at::Tensor LlamaBlockImpl::attend(const SumAndNorm& x, const Rotary& rotary,
                                  LayerCache* cache) {
  const auto qkv = project(x.norm, {q_proj_, k_proj_, v_proj_});
  const Tensor &q = qkv[0], &k = qkv[1], &v = qkv[2];
  drop_norm(input_layernorm_, x, qkv);
  KeyValues seen = {turn(split_heads(k, kv_heads_), rotary),
                    split_heads(v, kv_heads_)};
  if (cache != nullptr) seen = cache->append(seen);
  return o_proj_(join_heads(causal_attention(
      turn(split_heads(q, heads_), rotary), seen.keys, seen.values)));
}

at::Tensor LlamaBlockImpl::feed_forward(const SumAndNorm& x) {
  const auto both = project(x.norm, {gate_proj_, up_proj_});
  const Tensor &gate = both[0], &up = both[1];
  drop_norm(post_attention_layernorm_, x, both);
  const auto multiply =
      kernels_ == ModelKernels::fused ? &tessera::swiglu : &train::swiglu;
  const auto inner = multiply(gate, up);
  const auto out = down_proj_(inner);
  if (recompute_ == RecomputePolicy::selective) {
    free_until_backward(inner, {out}, [=] { return multiply(gate, up); });
  }
  return out;
}

Stream LlamaBlockImpl::forward(const Stream& stream, const Rotary& rotary,
                               LayerCache* cache) {
  const auto x = input_layernorm_(stream);
  const auto h =
      post_attention_layernorm_(Stream{x.sum, added(attend(x, rotary, cache))});
  return {h.sum, added(feed_forward(h))};
}

/// What a half of the block adds to the residual stream.
at::Tensor LlamaBlockImpl::added(const at::Tensor& x) const {
  return dropout(x, dropout_, mode_of(*this));
}

LlamaImpl::LlamaImpl(const ModelConfig& c)
    : kernels_(c.kernels),
      recompute_(c.recompute),
      embed_tokens_(register_module("embed_tokens",
                                    torch::nn::Embedding(c.vocab, c.dim))),
      layers_(register_module("layers", torch::nn::ModuleList())),
      norm_(nullptr),
      lm_head_(nullptr),
      dropout_(c.dropout) {
  for (int64_t i = 0; i < c.layers; ++i) {
    layers_->push_back(LlamaBlock(c));
  }
  norm_ = register_module("norm", RMSNorm(c));
  if (!c.tied) lm_head_ = register_module("lm_head", linear(c.dim, c.vocab));
  const Rotary rotary = make_rotary(c.seq, c.dim / c.heads, c.rope_base);
  rotary_.cos = register_buffer("cos", rotary.cos);
  rotary_.sin = register_buffer("sin", rotary.sin);
}

Stream LlamaImpl::run(LlamaBlockImpl& block, const Stream& stream,
                      const Rotary& rotary, LayerCache* cache) {
  if (recompute_ != RecomputePolicy::block || cache != nullptr)
    return block.forward(stream, rotary, cache);
  // Added up before, so that one tensor is kept for a block and not two.
  const auto x = stream.branch.defined() ? stream.residual + stream.branch
                                         : stream.residual;
  const auto results = recompute(
      [&block, rotary](const TensorVector& in) -> TensorVector {
        const Stream after = block.forward({in[0], {}}, rotary);
        return {after.residual, after.branch};
      },
      {x},
      {.random = dropout_ > 0 ? RecomputeOptions::Random::kept
                              : RecomputeOptions::Random::none});
  return {results[0], results[1]};
}

at::Tensor LlamaImpl::hidden(const at::Tensor& tokens, KeyValueCache* cache) {
  Stream stream{dropout(embed_tokens_(tokens), dropout_, mode_of(*this)), {}};
  const int64_t first = cache != nullptr ? cache->length() : 0;
  const int64_t n = tokens.size(1);
  Rotary rotary{rotary_.cos.narrow(0, first, n),
                rotary_.sin.narrow(0, first, n)};
  if (kernels_ == ModelKernels::plain) {
    const auto dtype = stream.residual.scalar_type();
    rotary = {rotary.cos.to(dtype), rotary.sin.to(dtype)};
  }
  for (size_t i = 0; i < layers_->size(); ++i) {
    LayerCache* layer_cache = cache != nullptr ? &cache->layer(i) : nullptr;
    stream = run(*layers_[i]->as<LlamaBlock>(), stream, rotary, layer_cache);
  }
  return norm_(stream).norm;
}

const at::Tensor& LlamaImpl::head() const {
  return lm_head_ ? lm_head_->weight : embed_tokens_->weight;
}

at::Tensor LlamaImpl::forward(const at::Tensor& tokens) {
  return torch::nn::functional::linear(hidden(tokens, nullptr), head());
}

at::Tensor LlamaImpl::extend(const at::Tensor& tokens, KeyValueCache& cache) {
  return torch::nn::functional::linear(hidden(tokens, &cache), head());
}

at::Tensor LlamaImpl::sum_of_losses(const at::Tensor& tokens,
                                    const at::Tensor& targets) {
  if (kernels_ == ModelKernels::plain) {
    return LanguageModel::sum_of_losses(tokens, targets);
  }
  return linear_cross_entropy(hidden(tokens, nullptr), head(), targets,
                              {.ignore_index = kNoTarget});
}

std::vector<torch::nn::Module*> LlamaImpl::units() {
  std::vector<torch::nn::Module*> units = {embed_tokens_.get()};
  for (const auto& layer : *layers_) units.push_back(layer.get());
  if (lm_head_) units.push_back(lm_head_.get());
  return units;
}

}  // namespace tessera::train
