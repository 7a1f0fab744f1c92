#include "tessera/kernels/device_math.cuh"

namespace tessera::cuda {
namespace {

enum class Input { alone, with_residual };

// One block a row. The second loop reads what the first one read or wrote
// itself, from the cache.
template <class T, int kWidth, Input input>
__global__ void norm_rows(const RmsNorm a) {
  const int64_t start = blockIdx.x * a.dim;
  const T* const x = static_cast<const T*>(a.x) + start;
  T* const sum = static_cast<T*>(a.sum) + start;
  const int step = blockDim.x * kWidth;
  float squares = 0;
  for (int64_t i = threadIdx.x * kWidth; i < a.dim; i += step) {
    float value[kWidth];
    load(x + i, value);
    if constexpr (input == Input::with_residual) {
      float other[kWidth];
      load(static_cast<const T*>(a.residual) + start + i, other);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        value[j] = rounded<T>(value[j] + other[j]);
      }
      store(sum + i, value);
    }
#pragma unroll
    for (int j = 0; j < kWidth; ++j) squares += value[j] * value[j];
  }
  squares = over_block(squares, Add{});
  const float rstd = rsqrtf(squares / static_cast<float>(a.dim) + a.eps);
  if (threadIdx.x == 0) a.rstd[blockIdx.x] = rstd;
  const T* const normed = input == Input::with_residual ? sum : x;
  for (int64_t i = threadIdx.x * kWidth; i < a.dim; i += step) {
    float value[kWidth];
    float weight[kWidth];
    load(normed + i, value);
    load(static_cast<const T*>(a.weight) + i, weight);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) value[j] *= rstd * weight[j];
    store(static_cast<T*>(a.y) + start + i, value);
  }
}

constexpr int kMostThreads = 512;

template <class T, int kWidth>
void start(const RmsNorm& call, Stream stream) {
  const int threads = threads_for(call.dim / kWidth, kMostThreads);
  const auto blocks = static_cast<unsigned>(call.rows);
  if (call.residual) {
    norm_rows<T, kWidth, Input::with_residual>
        <<<blocks, threads, 0, stream>>>(call);
  } else {
    norm_rows<T, kWidth, Input::alone><<<blocks, threads, 0, stream>>>(call);
  }
}

}  // namespace

void launch(const RmsNorm& call, Stream stream) {
  const bool fast = aligned(call.x) && aligned(call.residual) &&
                    aligned(call.weight) && aligned(call.sum) &&
                    aligned(call.y);
  with_loads(call.element, fast, call.dim, [&](auto zero, auto width) {
    start<decltype(zero), decltype(width)::value>(call, stream);
  });
}

}  // namespace tessera::cuda
