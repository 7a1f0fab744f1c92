#include "tessera/train/llama.h"

#include <torch/torch.h>

#include "tessera/kernels/cross_entropy.h"

namespace tessera::train {

LlamaImpl::LlamaImpl(const ModelConfig& c)
    : kernels_(c.kernels),
      embed_tokens_(register_module("embed_tokens",
                                    torch::nn::Embedding(c.vocab, c.dim))),
      layers_(register_module("layers", torch::nn::ModuleList())),
      norm_(nullptr),
      lm_head_(nullptr),
      dropout_(c.dropout) {
  for (int64_t i = 0; i < c.layers; ++i) {
    const RecomputePolicy recompute = recompute_of(c, i);
    if (recompute == RecomputePolicy::offload && !offload_) {
      offload_ = std::make_shared<HostOffload>(blocks_of_a_copy(c));
    }
    layers_->push_back(LlamaBlock(c, recompute, offload_));
  }
  norm_ = register_module("norm", RMSNorm(c));
  if (!c.tied) lm_head_ = register_module("lm_head", linear(c.dim, c.vocab));
  const Rotary rotary = make_rotary(c.seq, c.dim / c.heads, c.rope_base);
  rotary_.cos = register_buffer("cos", rotary.cos);
  rotary_.sin = register_buffer("sin", rotary.sin);
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
    stream = layers_[i]->as<LlamaBlock>()->forward(stream, rotary, layer_cache);
    if (offload_ && cache == nullptr) offload_->end_part(stream.branch);
  }
  const at::Tensor hidden = norm_(stream).norm;
  if (offload_ && cache == nullptr) offload_->end_forward(hidden);
  return hidden;
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
