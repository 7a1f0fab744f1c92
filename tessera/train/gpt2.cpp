#include "tessera/train/gpt2.h"

#include <torch/torch.h>

#include "tessera/train/functions.h"

namespace tessera::train {
namespace {

torch::nn::LayerNorm layer_norm(const ModelConfig& c) {
  return torch::nn::LayerNorm(
      torch::nn::LayerNormOptions({c.dim}).eps(c.norm_eps));
}

}  // namespace

Gpt2AttentionImpl::Gpt2AttentionImpl(const ModelConfig& c)
    : heads_(c.heads),
      c_attn_(register_module("c_attn", torch::nn::Linear(c.dim, 3 * c.dim))),
      c_proj_(register_module("c_proj", torch::nn::Linear(c.dim, c.dim))) {}

at::Tensor Gpt2AttentionImpl::forward(const at::Tensor& x, LayerCache* cache) {
  const auto qkv = c_attn_(x).chunk(3, -1);
  KeyValues seen = {split_heads(qkv[1], heads_), split_heads(qkv[2], heads_)};
  if (cache != nullptr) seen = cache->append(seen);
  const auto q = split_heads(qkv[0], heads_);
  return c_proj_(join_heads(causal_attention(q, seen.keys, seen.values)));
}

Gpt2MlpImpl::Gpt2MlpImpl(const ModelConfig& c)
    : c_fc_(register_module("c_fc", torch::nn::Linear(c.dim, c.ffn))),
      c_proj_(register_module("c_proj", torch::nn::Linear(c.ffn, c.dim))) {}

at::Tensor Gpt2MlpImpl::forward(const at::Tensor& x) {
  return c_proj_(torch::gelu(c_fc_(x), "tanh"));
}

Gpt2BlockImpl::Gpt2BlockImpl(const ModelConfig& c)
    : ln_1_(register_module("ln_1", layer_norm(c))),
      attn_(register_module("attn", Gpt2Attention(c))),
      ln_2_(register_module("ln_2", layer_norm(c))),
      mlp_(register_module("mlp", Gpt2Mlp(c))),
      dropout_(c.dropout) {}

at::Tensor Gpt2BlockImpl::forward(const at::Tensor& x, LayerCache* cache) {
  const Mode mode = mode_of(*this);
  const auto h = x + dropout(attn_(ln_1_(x), cache), dropout_, mode);
  return h + dropout(mlp_(ln_2_(h)), dropout_, mode);
}

Gpt2Impl::Gpt2Impl(const ModelConfig& c)
    : wte_(register_module("wte", torch::nn::Embedding(c.vocab, c.dim))),
      wpe_(register_module("wpe", torch::nn::Embedding(c.seq, c.dim))),
      h_(register_module("h", torch::nn::ModuleList())),
      ln_f_(nullptr),
      lm_head_(nullptr),
      dropout_(c.dropout) {
  for (int64_t i = 0; i < c.layers; ++i) h_->push_back(Gpt2Block(c));
  ln_f_ = register_module("ln_f", layer_norm(c));
  if (!c.tied) {
    lm_head_ = register_module(
        "lm_head", torch::nn::Linear(
                       torch::nn::LinearOptions(c.dim, c.vocab).bias(false)));
  }
}

at::Tensor Gpt2Impl::forward(const at::Tensor& tokens) {
  return run(tokens, nullptr);
}

at::Tensor Gpt2Impl::extend(const at::Tensor& tokens, KeyValueCache& cache) {
  return run(tokens, &cache);
}

at::Tensor Gpt2Impl::run(const at::Tensor& tokens, KeyValueCache* cache) {
  const int64_t first = cache != nullptr ? cache->length() : 0;
  const auto positions = torch::arange(first, first + tokens.size(1),
                                       tokens.options().dtype(torch::kLong));
  // One after the other: a sum's own operands may be computed in any order.
  auto x = wte_(tokens);
  x = dropout(x + wpe_(positions), dropout_, mode_of(*this));
  for (size_t i = 0; i < h_->size(); ++i) {
    LayerCache* layer_cache = cache != nullptr ? &cache->layer(i) : nullptr;
    x = h_[i]->as<Gpt2Block>()->forward(x, layer_cache);
  }
  x = ln_f_(x);
  return lm_head_ ? lm_head_(x)
                  : torch::nn::functional::linear(x, wte_->weight);
}

std::vector<torch::nn::Module*> Gpt2Impl::units() {
  std::vector<torch::nn::Module*> units = {wte_.get(), wpe_.get()};
  for (const auto& layer : *h_) units.push_back(layer.get());
  if (lm_head_) units.push_back(lm_head_.get());
  return units;
}

}  // namespace tessera::train
