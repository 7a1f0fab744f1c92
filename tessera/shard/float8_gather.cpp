#include "tessera/shard/float8_gather.h"

#include <ATen/ops/amax.h>
#include <ATen/ops/where.h>

namespace tessera {
namespace {

constexpr auto kPayload = c10::kFloat8_e4m3fn;
constexpr double kLargest = 448;

class Float8Gather final : public GatherTransform {
 public:
  std::vector<at::Tensor> pre_gather(const at::Tensor& part,
                                     int64_t row_numel) const override {
    const at::Tensor rows = part.view({-1, row_numel}).to(c10::kFloat);
    const at::Tensor largest = rows.abs().amax(1, /*keepdim=*/true);
    // A row of zeros stays one.
    const at::Tensor scale =
        at::where(largest == 0, 1.0, largest / kLargest).to(c10::kFloat);
    return {(rows / scale).to(kPayload).view(c10::kByte).view(-1),
            scale.view(-1)};
  }

  void post_gather(std::span<const at::Tensor> gathered, int64_t row_numel,
                   const at::Tensor& full) const override {
    const at::Tensor rows = gathered[0].view(kPayload).view({-1, row_numel});
    full.view({-1, row_numel})
        .copy_(rows.to(c10::kFloat).mul_(gathered[1].view({-1, 1})));
  }
};

}  // namespace

std::shared_ptr<GatherTransform> float8_gather() {
  return std::make_shared<Float8Gather>();
}

}  // namespace tessera
