#include "examples/train_text/model.h"

#include <torch/torch.h>

namespace train_text {
namespace {

torch::nn::Linear linear(int64_t in, int64_t out) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
}

/// [batch, n, heads * head_dim] -> [batch, heads, n, head_dim]
torch::Tensor split_heads(const torch::Tensor& x, int64_t heads) {
  return x.view({x.size(0), x.size(1), heads, -1}).transpose(1, 2);
}

}  // namespace

Rotary make_rotary(int64_t seq, int64_t head_dim, double base) {
  const auto real = torch::TensorOptions(torch::kFloat);
  const auto exponent = torch::arange(0, head_dim, 2, real) / head_dim;
  const auto frequency = torch::pow(base, exponent).reciprocal();
  auto angle = torch::outer(torch::arange(seq, real), frequency);
  angle = torch::cat({angle, angle}, -1);
  return {angle.cos(), angle.sin()};
}

torch::Tensor rotate(const torch::Tensor& x, const Rotary& rotary) {
  const auto halves = x.chunk(2, -1);
  return x * rotary.cos + torch::cat({-halves[1], halves[0]}, -1) * rotary.sin;
}

RMSNormImpl::RMSNormImpl(int64_t dim)
    : weight(register_parameter("weight", torch::empty(dim))) {
  RMSNormImpl::reset_parameters();
}

void RMSNormImpl::reset_parameters() { torch::nn::init::ones_(weight); }

torch::Tensor RMSNormImpl::forward(const torch::Tensor& x) {
  return torch::rms_norm(x, weight.sizes(), weight, 1e-5);
}

BlockImpl::BlockImpl(const ModelConfig& c)
    : heads_(c.heads),
      kv_heads_(c.kv_heads),
      input_layernorm_(register_module("input_layernorm", RMSNorm(c.dim))),
      post_attention_layernorm_(
          register_module("post_attention_layernorm", RMSNorm(c.dim))),
      q_proj_(register_module("q_proj", linear(c.dim, c.dim))),
      k_proj_(register_module("k_proj",
                              linear(c.dim, c.dim / c.heads * c.kv_heads))),
      v_proj_(register_module("v_proj",
                              linear(c.dim, c.dim / c.heads * c.kv_heads))),
      o_proj_(register_module("o_proj", linear(c.dim, c.dim))),
      gate_proj_(register_module("gate_proj", linear(c.dim, c.ffn))),
      up_proj_(register_module("up_proj", linear(c.dim, c.ffn))),
      down_proj_(register_module("down_proj", linear(c.ffn, c.dim))) {}

torch::Tensor BlockImpl::attention(const torch::Tensor& x,
                                   const Rotary& rotary) {
  const auto q = rotate(split_heads(q_proj_(x), heads_), rotary);
  const auto k = rotate(split_heads(k_proj_(x), kv_heads_), rotary);
  const auto v = split_heads(v_proj_(x), kv_heads_);
  const auto mixed = torch::scaled_dot_product_attention(
      q, k, v, /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true,
      /*scale=*/{}, /*enable_gqa=*/heads_ != kv_heads_);
  return o_proj_(mixed.transpose(1, 2).flatten(2));
}

torch::Tensor BlockImpl::feed_forward(const torch::Tensor& x) {
  return down_proj_(torch::silu(gate_proj_(x)) * up_proj_(x));
}

torch::Tensor BlockImpl::forward(const torch::Tensor& x, const Rotary& rotary) {
  const auto h = x + attention(input_layernorm_(x), rotary);
  return h + feed_forward(post_attention_layernorm_(h));
}

LlamaImpl::LlamaImpl(const ModelConfig& c)
    : embed_tokens(register_module("embed_tokens",
                                   torch::nn::Embedding(c.vocab, c.dim))),
      layers(register_module("layers", torch::nn::ModuleList())),
      norm(nullptr),
      lm_head(nullptr) {
  for (int64_t i = 0; i < c.layers; ++i) {
    layers->push_back(Block(c));
  }
  norm = register_module("norm", RMSNorm(c.dim));
  lm_head = register_module("lm_head", linear(c.dim, c.vocab));
  const Rotary rotary = make_rotary(c.seq, c.dim / c.heads, c.rope_base);
  rotary_.cos = register_buffer("cos", rotary.cos);
  rotary_.sin = register_buffer("sin", rotary.sin);
}

torch::Tensor LlamaImpl::forward(const torch::Tensor& tokens) {
  auto x = embed_tokens(tokens);
  const int64_t n = tokens.size(1);
  const Rotary rotary{rotary_.cos.narrow(0, 0, n).to(x.dtype()),
                      rotary_.sin.narrow(0, 0, n).to(x.dtype())};
  for (const auto& layer : *layers) {
    x = layer->as<Block>()->forward(x, rotary);
  }
  return lm_head(norm(x));
}

}  // namespace train_text
