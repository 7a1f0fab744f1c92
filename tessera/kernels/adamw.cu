#include "tessera/kernels/device_math.cuh"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 256;

/// The numbers of a step, in float, for all elements.
struct Terms {
  float factor;  // of the gradient
  float decay;   // of the parameter
  float step_size;
  float root_correction;  // of the second moment's root
};

// By one thread of a block: powers in double are slow.
__device__ Terms terms_of(const AdamW& a) {
  const double steps = *a.step;
  const double rate = *a.rate;
  return {.factor = a.factor ? *a.factor : 1.0f,
          .decay = static_cast<float>(1.0 - rate * a.weight_decay),
          .step_size = static_cast<float>(rate / (1.0 - pow(a.beta1, steps))),
          .root_correction =
              static_cast<float>(1.0 / sqrt(1.0 - pow(a.beta2, steps)))};
}

template <class T, int kWidth>
__global__ void update(const AdamW a) {
  if (a.skip && *a.skip != 0.0f) return;
  __shared__ Terms shared;
  if (threadIdx.x == 0) shared = terms_of(a);
  __syncthreads();
  const Terms terms = shared;
  const int64_t i =
      (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kWidth;
  if (i >= a.numel) return;
  float parameter[kWidth], gradient[kWidth], mean[kWidth], square[kWidth];
  float most[kWidth];
  load(a.parameter + i, parameter);
  load(a.gradient + i, gradient);
  load(a.exp_avg + i, mean);
  load(a.exp_avg_sq + i, square);
  if (a.max_exp_avg_sq) load(a.max_exp_avg_sq + i, most);
  const auto beta1 = static_cast<float>(a.beta1);
  const auto beta2 = static_cast<float>(a.beta2);
  const auto rest1 = static_cast<float>(1.0 - a.beta1);
  const auto rest2 = static_cast<float>(1.0 - a.beta2);
  const auto eps = static_cast<float>(a.eps);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    const float g = gradient[j] * terms.factor;
    mean[j] = beta1 * mean[j] + rest1 * g;
    square[j] = beta2 * square[j] + rest2 * g * g;
    float used = square[j];
    if (a.max_exp_avg_sq) used = most[j] = fmaxf(most[j], used);
    const float root = sqrtf(used) * terms.root_correction + eps;
    parameter[j] =
        parameter[j] * terms.decay - terms.step_size * (mean[j] / root);
  }
  store(a.parameter + i, parameter);
  store(a.exp_avg + i, mean);
  store(a.exp_avg_sq + i, square);
  if (a.max_exp_avg_sq) store(a.max_exp_avg_sq + i, most);
  if (a.copy) store(static_cast<T*>(a.copy) + i, parameter);
}

template <class T, int kWidth>
void start(const AdamW& call, Stream stream) {
  const int64_t loads = (call.numel + kWidth - 1) / kWidth;
  const auto blocks = static_cast<unsigned>((loads + kThreads - 1) / kThreads);
  update<T, kWidth><<<blocks, kThreads, 0, stream>>>(call);
}

template <class Pointer>
Pointer moved(Pointer pointer, int64_t elements) {
  return pointer ? pointer + elements : nullptr;
}

template <class T>
AdamW part(AdamW call, int64_t first, int64_t numel) {
  call.numel = numel;
  call.parameter = moved(call.parameter, first);
  call.gradient = moved(call.gradient, first);
  call.exp_avg = moved(call.exp_avg, first);
  call.exp_avg_sq = moved(call.exp_avg_sq, first);
  call.max_exp_avg_sq = moved(call.max_exp_avg_sq, first);
  call.copy = moved(static_cast<T*>(call.copy), first);
  return call;
}

}  // namespace

void launch(const AdamW& call, Stream stream) {
  const bool fast = aligned(call.parameter) && aligned(call.gradient) &&
                    aligned(call.exp_avg) && aligned(call.exp_avg_sq) &&
                    aligned(call.max_exp_avg_sq) && aligned(call.copy);
  const int64_t wide = fast ? call.numel / 4 * 4 : 0;
  with_type(call.element, [&](auto zero) {
    using T = decltype(zero);
    if (wide > 0) start<T, 4>(part<T>(call, 0, wide), stream);
    if (wide < call.numel) {
      start<T, 1>(part<T>(call, wide, call.numel - wide), stream);
    }
  });
}

}  // namespace tessera::cuda
