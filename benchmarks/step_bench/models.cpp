#include "benchmarks/step_bench/models.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include "tessera/tessera.h"
#include "tessera/train/build_model_meta.h"

namespace step_bench {

namespace {

/// The peer's weights: normal with deviation 0.02; norms are one already.
void draw_weights(torch::nn::Module& model) {
  const auto draw = [](torch::nn::Module& module, const std::string&) {
    if (auto* linear = module.as<torch::nn::Linear>()) {
      torch::nn::init::normal_(linear->weight, 0, 0.02);
    } else if (auto* embedding = module.as<torch::nn::Embedding>()) {
      torch::nn::init::normal_(embedding->weight, 0, 0.02);
    }
  };
  tessera::materialize(model, {.init = draw});
}

}  // namespace

void draw_weights_by_name(torch::nn::Module& model) {
  const tessera::FullParameters scope(model, tessera::Write::keep);
  const torch::NoGradGuard no_grad;
  for (auto& item : model.named_parameters()) {
    if (item.value().dim() < 2) continue;
    int64_t seed = 0;
    for (const char byte : item.key()) seed = (seed * 31 + byte) % (1LL << 31);
    auto random = at::make_generator<at::CPUGeneratorImpl>(seed);
    item.value().copy_(
        torch::empty(item.value().sizes()).normal_(0, 0.02, random));
  }
}

LanguageModelPtr plain_model(const Options& options, c10::Device device) {
  auto model = tessera::train::build_model_meta(options.model);
  draw_weights(*model);
  model->to(device);
  return model;
}

LanguageModelPtr sharded_model(const Options& options,
                               const tessera::DeviceMesh& mesh) {
  auto model = tessera::train::build_model_meta(options.model);
  tessera::FullyShardOptions how{.mesh = mesh};
  if (options.precision != Precision::float32) {
    how.mp_policy = {
        .param_dtype = options.precision == Precision::mixed_float16
                           ? torch::kHalf
                           : torch::kBFloat16,
        .reduce_dtype = torch::kFloat32};
  }
  if (!options.reshard) {
    how.reshard_after_forward = tessera::Reshard::never;
  }
  if (options.replicas > 1) {
    const int64_t parts = mesh.numel() / options.replicas;
    how.mesh = tessera::init_device_mesh(
        mesh.world(), {.shape = {options.replicas, parts},
                       .axes = {"dp_replicate", "dp_shard"}});
  }
  how.prefetch = options.prefetch;
  if (options.tight) how.backward_overlap = tessera::BackwardOverlap::tight;
  if (options.gather_copy) how.gather_copy = tessera::GatherCopy::kept;
  if (options.offload) how.offload_policy = tessera::CPUOffloadPolicy{};
  if (options.float8) how.gather_transform = tessera::float8_gather();
  for (auto* unit : model->units()) tessera::fully_shard(*unit, how);
  tessera::fully_shard(*model, how);
  draw_weights(*model);
  return model;
}

}  // namespace step_bench
