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

// dx = rstd * weight * dy - x * rstd^3 * mean(x * weight * dy), plus dsum.
// Blocks take rows in turn. Each thread alone adds to its own columns of the
// block's part of the weight's gradient, so nothing there waits.
template <class T, int kWidth>
__global__ void norm_rows_backward(const RmsNormBackward a) {
  extern __shared__ float dweight[];  // element j of load v: j * num_loads + v
  const int num_loads = static_cast<int>(a.dim) / kWidth;
  for (int v = threadIdx.x; v < num_loads; v += blockDim.x) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) dweight[j * num_loads + v] = 0;
  }
  const T* const weights = static_cast<const T*>(a.weight);
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T* const x = static_cast<const T*>(a.x) + row * a.dim;
    const T* const dy = static_cast<const T*>(a.dy) + row * a.dim;
    const float rstd = a.rstd[row];
    float dot = 0;
    for (int v = threadIdx.x; v < num_loads; v += blockDim.x) {
      float value[kWidth];
      float gradient[kWidth];
      float weight[kWidth];
      load(x + v * kWidth, value);
      load(dy + v * kWidth, gradient);
      load(weights + v * kWidth, weight);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        dot += value[j] * gradient[j] * weight[j];
      }
    }
    dot = over_block(dot, Add{});
    const float pull = dot / static_cast<float>(a.dim) * rstd * rstd * rstd;
    for (int v = threadIdx.x; v < num_loads; v += blockDim.x) {
      float value[kWidth];
      float gradient[kWidth];
      float weight[kWidth];
      float more[kWidth] = {};
      load(x + v * kWidth, value);
      load(dy + v * kWidth, gradient);
      load(weights + v * kWidth, weight);
      if (a.dsum) {
        load(static_cast<const T*>(a.dsum) + row * a.dim + v * kWidth, more);
      }
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        dweight[j * num_loads + v] += gradient[j] * value[j] * rstd;
        more[j] += rstd * weight[j] * gradient[j] - value[j] * pull;
      }
      store(static_cast<T*>(a.dx) + row * a.dim + v * kWidth, more);
    }
  }
  for (int v = threadIdx.x; v < num_loads; v += blockDim.x) {
    float part[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) part[j] = dweight[j * num_loads + v];
    store(a.partial + blockIdx.x * a.dim + v * kWidth, part);
  }
}

constexpr int kColumns = 32;
constexpr int kRowsAtOnce = 32;

// Sums `partial` over its rows: 32 columns a block.
template <class T>
__global__ void sum_partial(const RmsNormBackward a) {
  __shared__ float part[kRowsAtOnce][kColumns + 1];
  const int64_t column = blockIdx.x * kColumns + threadIdx.x;
  float sum = 0;
  if (column < a.dim) {
    for (int row = threadIdx.y; row < a.num_blocks; row += kRowsAtOnce) {
      sum += a.partial[row * a.dim + column];
    }
  }
  part[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= a.dim) return;
  for (int i = 1; i < kRowsAtOnce; ++i) sum += part[i][threadIdx.x];
  static_cast<T*>(a.dweight)[column] = from_float<T>(sum);
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

template <class T, int kWidth>
void start(const RmsNormBackward& call, Stream stream) {
  const int threads = threads_for(call.dim / kWidth, kMostThreads);
  norm_rows_backward<T, kWidth>
      <<<call.num_blocks, threads, call.dim * sizeof(float), stream>>>(call);
  const auto blocks =
      static_cast<unsigned>((call.dim + kColumns - 1) / kColumns);
  sum_partial<T><<<blocks, dim3(kColumns, kRowsAtOnce), 0, stream>>>(call);
}

template <class Call>
void start_for_type(const Call& call, bool fast, Stream stream) {
  with_type(call.element, [&](auto zero) {
    using T = decltype(zero);
    if (fast && call.dim % kWide<T> == 0) {
      start<T, kWide<T>>(call, stream);
    } else {
      start<T, 1>(call, stream);
    }
  });
}

}  // namespace

void launch(const RmsNorm& call, Stream stream) {
  const bool fast = aligned(call.x) && aligned(call.residual) &&
                    aligned(call.weight) && aligned(call.sum) &&
                    aligned(call.y);
  start_for_type(call, fast, stream);
}

void launch(const RmsNormBackward& call, Stream stream) {
  const bool fast = aligned(call.dy) && aligned(call.dsum) && aligned(call.x) &&
                    aligned(call.weight) && aligned(call.dx) &&
                    aligned(call.partial);
  start_for_type(call, fast, stream);
}

}  // namespace tessera::cuda
