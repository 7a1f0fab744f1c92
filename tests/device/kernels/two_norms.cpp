#include "tessera/kernels/two_norm.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "tests/device/kernels/checks.h"

namespace device_kernels {
namespace {

using torch::Tensor;

// None, less than a load, odd, one and more loads of all blocks; and more
// tensors than one kernel takes.
const std::vector<int64_t> kSizes = {
    0,    1,       7,          8,         9,  2048,      2049,
    4095, 100'003, 1'081'343,  1'081'344, 15, 2'162'689, 12'845'056,
    3,    16,      31'457'281, 640,       24};

std::vector<Tensor> numbers(torch::Dtype dtype) {
  std::vector<Tensor> tensors;
  for (const int64_t size : kSizes) {
    tensors.push_back((torch::randn({size}, torch::kCUDA) + 0.1).to(dtype));
  }
  return tensors;
}

/// The same values, from the second element of other memory on.
Tensor shifted(const Tensor& values) {
  const Tensor memory =
      torch::full({values.numel() + 1}, NAN, values.options());
  memory.narrow(0, 1, values.numel()).copy_(values);
  return memory.narrow(0, 1, values.numel());
}

int check(torch::Dtype dtype) {
  const auto tensors = numbers(dtype);
  const auto norms = tessera::two_norms_in_one_pass(tensors);
  bool good = norms.size() == tensors.size();
  double worst = 0;
  for (size_t i = 0; good && i < norms.size(); ++i) {
    const Tensor value = norms[i];
    good = value.dim() == 0 && value.scalar_type() == torch::kFloat;
    const double want = tensors[i].to(torch::kDouble).norm().item<double>();
    const double off = std::abs(value.item<double>() - want);
    worst = std::max(worst, want == 0 ? off : off / want);
    for (const Tensor& same : {tensors[i], shifted(tensors[i])}) {
      good =
          torch::equal(tessera::two_norms_in_one_pass({same}).at(0), value) &&
          good;
    }
  }
  // Float sums of some hundred squares a thread, then in a tree.
  good = good && worst < 1e-6;
  std::printf("%s 2-norms of %s: %.1e\n", good ? "ok" : "FAIL",
              c10::toString(dtype), worst);
  return good ? 0 : 1;
}

int check_what_is_not_finite() {
  const Tensor values = torch::ones({5000}, torch::kCUDA);
  const auto norm_with = [&](double value, int64_t at) {
    Tensor changed = values.clone();
    changed[at] = value;
    return tessera::two_norms_in_one_pass({changed}).at(0).item<double>();
  };
  const bool good = std::isnan(norm_with(NAN, 4999)) &&
                    std::isnan(norm_with(NAN, 0)) &&
                    std::isinf(norm_with(-INFINITY, 3000));
  std::printf("%s 2-norms of what is not finite\n", good ? "ok" : "FAIL");
  return good ? 0 : 1;
}

}  // namespace

int check_two_norms() {
  return check(torch::kFloat) + check(torch::kBFloat16) + check(torch::kHalf) +
         check_what_is_not_finite();
}

}  // namespace device_kernels
