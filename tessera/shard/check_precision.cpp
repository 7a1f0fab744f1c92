#include "tessera/shard/check_precision.h"

#include <torch/nn/modules/batchnorm.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"

namespace tessera {
namespace {

bool is_batch_norm(const torch::nn::Module& module) {
  return module.as<torch::nn::BatchNorm1d>() ||
         module.as<torch::nn::BatchNorm2d>() ||
         module.as<torch::nn::BatchNorm3d>();
}

// Undefined when the module keeps none.
at::Tensor running_mean_of(const torch::nn::Module& module) {
  const auto buffers = module.named_buffers(/*recurse=*/false);
  const at::Tensor* mean = buffers.find("running_mean");
  return mean ? *mean : at::Tensor();
}

void check_dtype(const char* field,
                 const std::optional<c10::ScalarType>& dtype) {
  const bool fits = !dtype || *dtype == c10::kHalf ||
                    *dtype == c10::kBFloat16 || *dtype == c10::kFloat ||
                    *dtype == c10::kDouble;
  require<InvalidArgument>(fits, [&] {
    return str("fully_shard: mp_policy's ", field, " ", *dtype,
               "; expected Half, BFloat16, Float or Double.");
  });
}

}  // namespace

void check_policy(const MixedPrecisionPolicy& policy) {
  check_dtype("param_dtype", policy.param_dtype);
  check_dtype("reduce_dtype", policy.reduce_dtype);
  check_dtype("output_dtype", policy.output_dtype);
}

void check_precision(const std::vector<FoundParameter>& parameters,
                     const MixedPrecisionPolicy& policy) {
  if (!policy.param_dtype) return;
  for (const FoundParameter& found : parameters) {
    for (const ParameterOwner& owner : found.owners) {
      if (!is_batch_norm(*owner.module)) continue;
      const at::Tensor mean = running_mean_of(*owner.module);
      require<Unsupported>(
          !mean.defined() || mean.scalar_type() == *policy.param_dtype, [&] {
            return tessera::str("fully_shard: '", found.name, "' belongs to a ",
                                owner.module->name(),
                                " whose running statistics are ",
                                mean.scalar_type(),
                                ", and LibTorch computes no batch norm "
                                "with them and parameters in the param_dtype ",
                                *policy.param_dtype,
                                ". Shard that module before, as a unit "
                                "of its own without param_dtype.");
          });
    }
  }
}

void warn_of_low_masters(const std::vector<FoundParameter>& parameters,
                         const MixedPrecisionPolicy& policy) {
  if (!policy.param_dtype) return;
  for (const FoundParameter& found : parameters) {
    const c10::ScalarType stored = found.tensor.scalar_type();
    const bool low =
        c10::isFloatingType(stored) && c10::elementSize(stored) < 4;
    if (!low || !found.tensor.requires_grad()) continue;
    log_once(
        LogLevel::warning,
        tessera::str("fully_shard: '", found.name, "' is stored in ", stored,
                     ", and the optimizer steps it there: updates below "
                     "its precision are lost. For masters in float32 "
                     "call model->to(torch::kFloat) before: param_dtype "
                     "alone says what it is gathered and computed in."));
    return;
  }
}

void check_gather_copy(const FullyShardOptions& options) {
  require<InvalidArgument>(
      options.gather_copy == GatherCopy::none ||
          (!options.offload_policy && !options.gather_transform),
      [&] {
        return str(
            "fully_shard: GatherCopy::kept together with ",
            options.offload_policy ? "an offload_policy" : "a gather_transform",
            "; gathers would not send the copy. Leave one of them out.");
      });
}

}  // namespace tessera
