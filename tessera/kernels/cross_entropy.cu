#include "tessera/kernels/device_math.cuh"

namespace tessera::cuda {
namespace {

constexpr int kMostThreads = 512;

// Logits are read twice, the second time mostly from the L2 cache.
template <class T>
__device__ float exponential(float value) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return expf(value);
  } else {
    return __expf(value);  // finer than the result is stored
  }
}

/// Sum of e^(value - top) over what was seen, top the largest of it.
struct ExpSum {
  float top = Largest::kNothing;
  float sum = 0;
};

template <class T, int kWidth>
__device__ void add(ExpSum& seen, const float (&values)[kWidth]) {
  float top = seen.top;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) top = fmaxf(top, values[j]);
  if (top == Largest::kNothing) {  // nothing but -infinity or NaN so far
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      if (isnan(values[j])) seen.sum = values[j];
    }
    return;
  }
  seen.sum *= exponential<T>(seen.top - top);
  seen.top = top;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    seen.sum += exponential<T>(values[j] - top);
  }
}

template <class T>
__device__ ExpSum over_block(const ExpSum& own) {
  ExpSum all;
  all.top = over_block(own.top, Largest{});
  const float scale =
      own.top == Largest::kNothing ? 0 : exponential<T>(own.top - all.top);
  // Not sum * scale where nothing was seen: NaN must stay NaN.
  all.sum = over_block(scale == 0 ? own.sum * 0 : own.sum * scale, Add{});
  return all;
}

template <class T, int kWidth>
__device__ void fill(T* to, int64_t vocab, float value) {
  float values[kWidth];
#pragma unroll
  for (int j = 0; j < kWidth; ++j) values[j] = value;
  for (int64_t i = threadIdx.x * kWidth; i < vocab; i += blockDim.x * kWidth) {
    store(to + i, values);
  }
}

// One block a row.
template <class T, int kWidth>
__global__ void lose_rows(const CrossEntropy a) {
  const int64_t row = blockIdx.x;
  const int64_t target = a.targets[row];
  const T* const logits = static_cast<const T*>(a.logits) + row * a.row_stride;
  T* const gradient = static_cast<T*>(a.gradient) + row * a.row_stride;
  if (target == a.ignored) {
    if (threadIdx.x == 0) a.losses[row] = 0;
    if (a.gradient) fill<T, kWidth>(gradient, a.vocab, 0);
    return;
  }
  const bool valid = target >= 0 && target < a.vocab;
  // Before the gradient may take its place.
  const float of_target =
      valid ? to_float(logits[target]) : __int_as_float(0x7fc00000);
  ExpSum seen;
  const int step = blockDim.x * kWidth;
  for (int64_t i = threadIdx.x * kWidth; i < a.vocab; i += step) {
    float values[kWidth];
    load(logits + i, values);
    add<T>(seen, values);
  }
  seen = over_block<T>(seen);
  if (threadIdx.x == 0) {
    a.losses[row] = logf(seen.sum) + (seen.top - of_target);
  }
  if (!a.gradient) return;
  const float scale = valid ? 1.0f / seen.sum : of_target;
  for (int64_t i = threadIdx.x * kWidth; i < a.vocab; i += step) {
    float values[kWidth];
    load(logits + i, values);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      values[j] = exponential<T>(values[j] - seen.top) * scale;
      if (i + j == target) values[j] -= 1.0f;
    }
    store(gradient + i, values);
  }
}

template <class T, int kWidth>
void start(const CrossEntropy& call, Stream stream) {
  const int threads = threads_for(call.vocab / kWidth, kMostThreads);
  const auto blocks = static_cast<unsigned>(call.rows);
  lose_rows<T, kWidth><<<blocks, threads, 0, stream>>>(call);
}

}  // namespace

void launch(const CrossEntropy& call, Stream stream) {
  with_type(call.element, [&](auto zero) {
    using T = decltype(zero);
    if (aligned(call.logits) && aligned(call.gradient) &&
        call.vocab % kWide<T> == 0 && call.row_stride % kWide<T> == 0) {
      start<T, kWide<T>>(call, stream);
    } else {
      start<T, 1>(call, stream);
    }
  });
}

}  // namespace tessera::cuda
