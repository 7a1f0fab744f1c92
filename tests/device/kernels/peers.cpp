#include <ATen/cuda/CUDAContext.h>
#include <torch/torch.h>

#include <cstdio>
#include <vector>

#include "tessera/kernels/launch.h"
#include "tests/device/kernels/checks.h"

namespace device_kernels {
namespace {

using torch::Tensor;
namespace cuda = tessera::cuda;

constexpr int kParts = 3;
// Odd ones, ones that begin unaligned, and more than one kernel takes.
const std::vector<int64_t> kSizes = {8, 0, 1,  4097, 16, 3,        250'000,
                                     7, 1, 24, 640,  5,  1'000'003};

Tensor numbers(torch::Dtype dtype) {
  int64_t numel = 0;
  for (const int64_t size : kSizes) numel += size;
  return torch::randn({numel}, torch::kCUDA).to(dtype);
}

char* at(const Tensor& tensor, int64_t element) {
  return static_cast<char*>(tensor.data_ptr()) +
         element * static_cast<int64_t>(tensor.itemsize());
}

cuda::Element element_of(torch::Dtype dtype) {
  return dtype == torch::kFloat      ? cuda::Element::float32
         : dtype == torch::kBFloat16 ? cuda::Element::bfloat16
                                     : cuda::Element::float16;
}

int report(const char* what, torch::Dtype from, torch::Dtype to, bool good) {
  std::printf("%s %s %s to %s\n", good ? "ok" : "FAIL", what,
              c10::toString(from), c10::toString(to));
  return good ? 0 : 1;
}

/// Stretches of one tensor, summed by themselves, against the whole.
int check_sums(torch::Dtype from, torch::Dtype to) {
  std::vector<Tensor> parts;
  for (int p = 0; p < kParts; ++p) parts.push_back(numbers(from));
  const Tensor output = torch::full_like(parts[0], 77).to(to);
  std::vector<cuda::SumOfParts> calls;
  int64_t first = 0;
  for (const int64_t size : kSizes) {
    cuda::SumOfParts call{
        element_of(from), element_of(to), size, kParts, 0.5F, {}, {}};
    for (int p = 0; p < kParts; ++p) call.parts[p] = at(parts[p], first);
    call.output = at(output, first);
    calls.push_back(call);
    first += size;
  }
  cuda::launch(calls.data(), static_cast<int>(calls.size()),
               at::cuda::getCurrentCUDAStream());
  Tensor want = parts[0].to(torch::kFloat);
  for (int p = 1; p < kParts; ++p) want += parts[p].to(torch::kFloat);
  return report("sums of stretches,", from, to,
                torch::equal(output, (want * 0.5).to(to)));
}

int check_casts(torch::Dtype to) {
  const Tensor input = numbers(torch::kFloat);
  const Tensor one = torch::full_like(input, 77).to(to);
  const Tensor two = one.clone();
  std::vector<cuda::CastToTwo> calls;
  int64_t first = 0;
  for (const int64_t size : kSizes) {
    calls.push_back({element_of(to),
                     size,
                     input.data_ptr<float>() + first,
                     {at(one, first), at(two, first)}});
    first += size;
  }
  cuda::launch(calls.data(), static_cast<int>(calls.size()),
               at::cuda::getCurrentCUDAStream());
  const Tensor want = input.to(to);
  return report("casts of stretches,", torch::kFloat, to,
                torch::equal(one, want) && torch::equal(two, want));
}

}  // namespace

int check_peers() {
  int failures = 0;
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kHalf}) {
    failures += check_sums(dtype, dtype);
    if (dtype == torch::kFloat) continue;
    failures += check_sums(dtype, torch::kFloat);
    failures += check_casts(dtype);
  }
  return failures;
}

}  // namespace device_kernels
