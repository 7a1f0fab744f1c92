#include "tessera/kernels/device_math.cuh"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWidth = 8;
// Loads of a thread that are under way at once.
constexpr int kAhead = 2;
constexpr int kMostTogether = 16;

struct Together {
  int count;
  TwoNorm calls[kMostTogether];
};

/// Blocks that a tensor is cut over: of its size alone, so that the order in
/// which it is added up is, too.
__host__ __device__ int blocks_of(int64_t numel) {
  const int64_t wanted = (numel + kThreads * kWidth - 1) / (kThreads * kWidth);
  return static_cast<int>(wanted < kTwoNormBlocks ? wanted : kTwoNormBlocks);
}

/// Adds the squares of the kWidth elements at `from`.
template <class T>
__device__ void add_squares(const T* from, bool fast, float (&sums)[kWidth]) {
  float values[kWidth];
  if (fast) {
    load(from, values);
  } else {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) values[j] = to_float(from[j]);
  }
#pragma unroll
  for (int j = 0; j < kWidth; ++j) sums[j] += values[j] * values[j];
}

// blockIdx.y: the tensor.
template <class T>
__global__ void square(const __grid_constant__ Together all) {
  const TwoNorm& call = all.calls[blockIdx.y];
  const int num_blocks = blocks_of(call.numel);
  if (static_cast<int>(blockIdx.x) >= num_blocks) return;
  const T* const values = static_cast<const T*>(call.values);
  const bool fast = reinterpret_cast<std::uintptr_t>(values) % 16 == 0;
  const int64_t step = static_cast<int64_t>(num_blocks) * kThreads * kWidth;
  const int64_t whole = call.numel / kWidth * kWidth;
  const int64_t first =
      (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth;
  float sums[kAhead][kWidth] = {};
  int64_t i = first;
  for (; i + (kAhead - 1) * step < whole; i += kAhead * step) {
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      add_squares(values + i + k * step, fast, sums[k]);
    }
  }
  for (; i < whole; i += step) add_squares(values + i, fast, sums[0]);
  // The last elements, which do not fill a load.
  if (i == whole) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      if (whole + j >= call.numel) continue;
      const float value = to_float(values[whole + j]);
      sums[0][j] += value * value;
    }
  }
  float total = 0;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    float column = 0;
#pragma unroll
    for (int k = 0; k < kAhead; ++k) column += sums[k][j];
    total += column;
  }
  total = over_block(total, Add{});
  if (threadIdx.x == 0) call.partial[blockIdx.x] = total;
}

// A block for each tensor.
__global__ void add_up(const __grid_constant__ Together all) {
  const TwoNorm& call = all.calls[blockIdx.x];
  const int num_blocks = blocks_of(call.numel);
  float total = 0;
  for (int i = static_cast<int>(threadIdx.x); i < num_blocks; i += kThreads) {
    total += call.partial[i];
  }
  total = over_block(total, Add{});
  if (threadIdx.x == 0) *call.norm = sqrtf(total);
}

void start(const Together& all, Stream stream) {
  int most = 1;
  for (int c = 0; c < all.count; ++c) {
    const int blocks = blocks_of(all.calls[c].numel);
    most = blocks > most ? blocks : most;
  }
  const dim3 grid(static_cast<unsigned>(most),
                  static_cast<unsigned>(all.count));
  with_type(all.calls[0].element, [&](auto zero) {
    square<decltype(zero)><<<grid, kThreads, 0, stream>>>(all);
  });
  add_up<<<static_cast<unsigned>(all.count), kThreads, 0, stream>>>(all);
}

}  // namespace

void launch(const TwoNorm* calls, int count, Stream stream) {
  Together all{};
  for (int i = 0; i < count; ++i) {
    all.calls[all.count++] = calls[i];
    if (all.count < kMostTogether && i + 1 < count) continue;
    start(all, stream);
    all.count = 0;
  }
}

}  // namespace tessera::cuda
