// The trainer's Llama as a model of the agreement suite, with either kernels.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/train/llama.h"
#include "tests/agreement/models.h"

namespace agreement {

using tessera::train::ModelKernels;
using tessera::train::RecomputePolicy;

struct SmallLlama : Model {
  tessera::train::Llama inner;
  SmallLlama(ModelKernels kernels, RecomputePolicy recompute)
      : inner(tessera::train::ModelConfig{.vocab = kVocab,
                                          .dim = 32,
                                          .layers = 3,
                                          .heads = 4,
                                          .kv_heads = 2,
                                          .ffn = 56,
                                          .seq = kSeq,
                                          .kernels = kernels,
                                          .recompute = recompute}) {
    register_module("inner", inner);
  }
  Tensor forward(Tensor tokens) override { return inner->forward(tokens); }
  Tensor loss(const Tensor& tokens, const Tensor& targets) override {
    return inner->sum_of_losses(tokens, targets) / targets.numel();
  }
  std::vector<nn::Module*> units() override { return inner->units(); }
};

inline NamedModel small_llama(ModelKernels kernels, RecomputePolicy recompute) {
  const char* const policies[] = {
      "", ", selective recompute", ", activations on the host",
      ", recompute of all but attention", ", recompute of blocks"};
  return {tessera::str(kernels == ModelKernels::fused ? "fused" : "plain",
                       " llama", policies[static_cast<int>(recompute)]),
          [=] { return std::make_shared<SmallLlama>(kernels, recompute); }};
}

}  // namespace agreement
