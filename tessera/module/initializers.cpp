#include "tessera/module/initializers.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/init.h>
#include <torch/nn/modules.h>

#include <algorithm>
#include <string_view>

namespace tessera {
namespace {

namespace nn = torch::nn;

using WrittenNames = std::span<const std::string_view>;

constexpr std::string_view kWeight[] = {"weight"};
constexpr std::string_view kWeightAndBias[] = {"weight", "bias"};
constexpr std::string_view kNorm[] = {"weight", "bias", "running_mean",
                                      "running_var", "num_batches_tracked"};
constexpr std::string_view kAttention[] = {
    "in_proj_weight", "in_proj_bias", "q_proj_weight", "k_proj_weight",
    "v_proj_weight",  "bias_k",       "bias_v"};
constexpr WrittenNames kAllParameters = {};  // whatever the dictionary holds

struct Initializer {
  bool (*matches)(const nn::Module&);
  Initialized (*run)(nn::Module&);
  WrittenNames written;  // own parameters and buffers that `run` writes
};

template <class Impl>
bool is(const nn::Module& module) {
  return dynamic_cast<const Impl*>(&module) != nullptr;
}

template <class Impl>
Initialized run_reset_parameters(nn::Module& module) {
  dynamic_cast<Impl&>(module).reset_parameters();
  return Initialized::yes;
}

// Weights given to the constructor are values that nobody can draw again.
template <class Impl>
Initialized run_embedding(nn::Module& module) {
  auto& embedding = dynamic_cast<Impl&>(module);
  if (embedding.options._weight().defined()) return Initialized::nothing_to_do;
  embedding.reset_parameters();
  return Initialized::yes;
}

Initialized run_prelu(nn::Module& module) {
  auto& prelu = dynamic_cast<nn::PReLUImpl&>(module);
  nn::init::constant_(prelu.weight, prelu.options.init());
  return Initialized::yes;
}

// `_reset_parameters` without its last step, which writes the child `out_proj`.
Initialized run_attention(nn::Module& module) {
  auto& attention = dynamic_cast<nn::MultiheadAttentionImpl&>(module);
  for (const torch::Tensor& weight :
       {attention.in_proj_weight, attention.q_proj_weight,
        attention.k_proj_weight, attention.v_proj_weight}) {
    if (weight.defined()) nn::init::xavier_uniform_(weight);
  }
  if (attention.in_proj_bias.defined()) {
    nn::init::zeros_(attention.in_proj_bias);
  }
  for (const torch::Tensor& bias : {attention.bias_k, attention.bias_v}) {
    if (bias.defined()) nn::init::xavier_normal_(bias);
  }
  return Initialized::yes;
}

template <class Impl>
constexpr Initializer row(WrittenNames written) {
  return {is<Impl>, run_reset_parameters<Impl>, written};
}

constexpr Initializer kInitializers[] = {
    row<nn::LinearImpl>(kWeightAndBias),
    row<nn::BilinearImpl>(kWeightAndBias),
    row<nn::LayerNormImpl>(kWeightAndBias),
    row<nn::GroupNormImpl>(kWeightAndBias),
    row<nn::Conv1dImpl>(kWeightAndBias),
    row<nn::Conv2dImpl>(kWeightAndBias),
    row<nn::Conv3dImpl>(kWeightAndBias),
    row<nn::ConvTranspose1dImpl>(kWeightAndBias),
    row<nn::ConvTranspose2dImpl>(kWeightAndBias),
    row<nn::ConvTranspose3dImpl>(kWeightAndBias),
    row<nn::BatchNorm1dImpl>(kNorm),
    row<nn::BatchNorm2dImpl>(kNorm),
    row<nn::BatchNorm3dImpl>(kNorm),
    row<nn::InstanceNorm1dImpl>(kNorm),
    row<nn::InstanceNorm2dImpl>(kNorm),
    row<nn::InstanceNorm3dImpl>(kNorm),
    row<nn::RNNImpl>(kAllParameters),
    row<nn::LSTMImpl>(kAllParameters),
    row<nn::GRUImpl>(kAllParameters),
    row<nn::RNNCellImpl>(kAllParameters),
    row<nn::LSTMCellImpl>(kAllParameters),
    row<nn::GRUCellImpl>(kAllParameters),
    {is<nn::EmbeddingImpl>, run_embedding<nn::EmbeddingImpl>, kWeight},
    {is<nn::EmbeddingBagImpl>, run_embedding<nn::EmbeddingBagImpl>, kWeight},
    {is<nn::PReLUImpl>, run_prelu, kWeight},
    {is<nn::MultiheadAttentionImpl>, run_attention, kAttention},
};

// Whether one of `tensors` is defined and its name is not in `written`.
template <class NamedTensors>
bool holds_more(const NamedTensors& tensors, WrittenNames written) {
  return std::ranges::any_of(tensors, [written](const auto& item) {
    return item.value().defined() &&
           std::ranges::find(written, item.key()) == written.end();
  });
}

bool writes_all(const Initializer& initializer, const nn::Module& module) {
  const bool all_parameters =
      initializer.written.empty() ||
      !holds_more(module.named_parameters(/*recurse=*/false),
                  initializer.written);
  return all_parameters && !holds_more(module.named_buffers(/*recurse=*/false),
                                       initializer.written);
}

bool has_own_tensors(const nn::Module& module) {
  return holds_more(module.named_parameters(/*recurse=*/false), {}) ||
         holds_more(module.named_buffers(/*recurse=*/false), {});
}

Initialized initialize_own(nn::Module& module) {
  if (auto* own = dynamic_cast<Initializable*>(&module)) {
    own->reset_parameters();
    return Initialized::yes;
  }
  if (!has_own_tensors(module)) return Initialized::nothing_to_do;
  for (const Initializer& initializer : kInitializers) {
    if (!initializer.matches(module)) continue;
    if (!writes_all(initializer, module)) break;
    return initializer.run(module);
  }
  return Initialized::unknown_type;
}

// What the constructor of `ancestor` does to the own parameters of `module`.
void apply_ancestor(const nn::Module& ancestor, nn::Module& module) {
  if (const auto* attention =
          dynamic_cast<const nn::MultiheadAttentionImpl*>(&ancestor)) {
    const bool is_out_proj = attention->out_proj.ptr().get() == &module;
    if (is_out_proj && attention->in_proj_bias.defined()) {
      nn::init::zeros_(attention->out_proj->bias);
    }
  } else if (is<nn::TransformerImpl>(ancestor)) {
    for (const torch::Tensor& parameter : module.parameters(false)) {
      if (parameter.dim() > 1) nn::init::xavier_uniform_(parameter);
    }
  }
}

}  // namespace

Initialized initialize_module(nn::Module& module) {
  const at::NoGradGuard no_grad;
  const Initialized result = initialize_own(module);
  for (const auto& below : module.modules(/*include_self=*/false)) {
    apply_ancestor(module, *below);
  }
  return result;
}

Initialized initialize_module(nn::Module& module,
                              std::span<nn::Module* const> ancestors) {
  const at::NoGradGuard no_grad;
  const Initialized result = initialize_own(module);
  for (const nn::Module* ancestor : ancestors) {
    apply_ancestor(*ancestor, module);
  }
  return result;
}

}  // namespace tessera
