#include "tessera/parallel/comm_hooks.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "tessera/comm/distributed.h"

namespace tessera::comm_hooks {
namespace {

/// Divided first, as the sum of 16-bit values could overflow.
ReducedBucket start_mean(const at::Tensor& values, int64_t divisor,
                         const distributed::ProcessGroup& group) {
  values.mul_(1.0 / static_cast<double>(divisor));
  auto work = std::make_shared<distributed::Work>(
      distributed::all_reduce(values, group));
  return [work, values] {
    work->wait();
    return values;
  };
}

CommHook compress(const distributed::ProcessGroup& group,
                  at::ScalarType dtype) {
  return [group, dtype](const GradientBucket& bucket) {
    return start_mean(bucket.buffer().to(dtype), bucket.divisor(), group);
  };
}

}  // namespace

CommHook all_reduce(const distributed::ProcessGroup& group) {
  return [group](const GradientBucket& bucket) {
    return start_mean(bucket.buffer(), bucket.divisor(), group);
  };
}

CommHook fp16_compress(const distributed::ProcessGroup& group) {
  return compress(group, at::kHalf);
}

CommHook bf16_compress(const distributed::ProcessGroup& group) {
  return compress(group, at::kBFloat16);
}

CommHook noop() {
  return [](const GradientBucket& bucket) {
    return [values = bucket.buffer()] { return values; };
  };
}

}  // namespace tessera::comm_hooks
