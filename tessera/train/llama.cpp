#include "tessera/train/llama.h"

#include <torch/torch.h>

namespace tessera::train {
namespace {

torch::nn::Linear linear(int64_t in, int64_t out) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
}

}  // namespace

RMSNormImpl::RMSNormImpl(int64_t dim, double eps)
    : weight(register_parameter("weight", torch::empty(dim))), eps_(eps) {
  RMSNormImpl::reset_parameters();
}

void RMSNormImpl::reset_parameters() { torch::nn::init::ones_(weight); }

at::Tensor RMSNormImpl::forward(const at::Tensor& x) {
  return rms_norm(x, weight, eps_);
}

LlamaBlockImpl::LlamaBlockImpl(const ModelConfig& c)
    : heads_(c.heads),
      kv_heads_(c.kv_heads),
      input_layernorm_(
          register_module("input_layernorm", RMSNorm(c.dim, c.norm_eps))),
      post_attention_layernorm_(register_module("post_attention_layernorm",
                                                RMSNorm(c.dim, c.norm_eps))),
      q_proj_(register_module("q_proj", linear(c.dim, c.dim))),
      k_proj_(register_module("k_proj",
                              linear(c.dim, c.dim / c.heads * c.kv_heads))),
      v_proj_(register_module("v_proj",
                              linear(c.dim, c.dim / c.heads * c.kv_heads))),
      o_proj_(register_module("o_proj", linear(c.dim, c.dim))),
      gate_proj_(register_module("gate_proj", linear(c.dim, c.ffn))),
      up_proj_(register_module("up_proj", linear(c.dim, c.ffn))),
      down_proj_(register_module("down_proj", linear(c.ffn, c.dim))) {}

at::Tensor LlamaBlockImpl::attend(const at::Tensor& x, const Rotary& rotary) {
  const auto q = rotate(split_heads(q_proj_(x), heads_), rotary);
  const auto k = rotate(split_heads(k_proj_(x), kv_heads_), rotary);
  const auto v = split_heads(v_proj_(x), kv_heads_);
  return o_proj_(join_heads(causal_attention(q, k, v)));
}

at::Tensor LlamaBlockImpl::feed_forward(const at::Tensor& x) {
  return down_proj_(swiglu(gate_proj_(x), up_proj_(x)));
}

at::Tensor LlamaBlockImpl::forward(const at::Tensor& x, const Rotary& rotary) {
  const auto h = x + attend(input_layernorm_(x), rotary);
  return h + feed_forward(post_attention_layernorm_(h));
}

LlamaImpl::LlamaImpl(const ModelConfig& c)
    : embed_tokens_(register_module("embed_tokens",
                                    torch::nn::Embedding(c.vocab, c.dim))),
      layers_(register_module("layers", torch::nn::ModuleList())),
      norm_(nullptr),
      lm_head_(nullptr) {
  for (int64_t i = 0; i < c.layers; ++i) {
    layers_->push_back(LlamaBlock(c));
  }
  norm_ = register_module("norm", RMSNorm(c.dim, c.norm_eps));
  if (!c.tied) lm_head_ = register_module("lm_head", linear(c.dim, c.vocab));
  const Rotary rotary = make_rotary(c.seq, c.dim / c.heads, c.rope_base);
  rotary_.cos = register_buffer("cos", rotary.cos);
  rotary_.sin = register_buffer("sin", rotary.sin);
}

at::Tensor LlamaImpl::forward(const at::Tensor& tokens) {
  auto x = embed_tokens_(tokens);
  const int64_t n = tokens.size(1);
  const Rotary rotary{rotary_.cos.narrow(0, 0, n).to(x.dtype()),
                      rotary_.sin.narrow(0, 0, n).to(x.dtype())};
  for (const auto& layer : *layers_) {
    x = layer->as<LlamaBlock>()->forward(x, rotary);
  }
  x = norm_(x);
  return lm_head_ ? lm_head_(x)
                  : torch::nn::functional::linear(x, embed_tokens_->weight);
}

std::vector<torch::nn::Module*> LlamaImpl::units() {
  std::vector<torch::nn::Module*> units = {embed_tokens_.get()};
  for (const auto& layer : *layers_) units.push_back(layer.get());
  if (lm_head_) units.push_back(lm_head_.get());
  return units;
}

}  // namespace tessera::train
