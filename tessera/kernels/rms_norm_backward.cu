#include "tessera/kernels/device_math.cuh"

namespace tessera::cuda {
namespace {

// dx = rstd * weight * dy - x * rstd^3 * mean(x * weight * dy), plus dsum.
// For rows of any length and memory that is not aligned. Blocks take rows in
// turn. Each thread alone adds to its own columns of the block's part of the
// weight's gradient, so nothing there waits.
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

template <class T>
using Load = Pack<T, kWide<T>>;

template <class T>
__device__ Load<T>& load_at(void* matrix, int64_t element) {
  return *reinterpret_cast<Load<T>*>(static_cast<T*>(matrix) + element);
}
template <class T>
__device__ const Load<T>& load_at(const void* matrix, int64_t element) {
  return *reinterpret_cast<const Load<T>*>(static_cast<const T*>(matrix) +
                                           element);
}

/// What a thread reads of a row: one load of each, as it lies in memory.
template <class T>
struct OfRow {
  Load<T> x{}, dy{}, dsum{};
  float rstd = 0;
};

template <class T>
__device__ OfRow<T> read_row(const RmsNormBackward& a, int64_t row,
                             int column) {
  OfRow<T> read;
  if (row >= a.rows || column >= a.dim) return read;
  const int64_t at = row * a.dim + column;
  read.x = load_at<T>(a.x, at);
  read.dy = load_at<T>(a.dy, at);
  if (a.dsum) read.dsum = load_at<T>(a.dsum, at);
  read.rstd = a.rstd[row];
  return read;
}

/// `value` of the threads of a row, which are whole warps, combined and given
/// to all of them; always in one order. One wait: the next call writes to the
/// other half of `sums`.
__device__ float over_row(float value, int warps_of_row, int turn,
                          float (&sums)[2][32]) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(~0u, value, offset);
  }
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (lane == 0) sums[turn][warp] = value;
  __syncthreads();
  const int first = warp / warps_of_row * warps_of_row;
  value = lane < warps_of_row ? sums[turn][first + lane] : 0;
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(~0u, value, offset);
  }
  return value;
}

constexpr int kThreadsOfRows = kLongestShortRow / 16;

// For rows of which each thread has one load. A block has as many rows at once
// as fit, reads the next ones while it works, and holds its part of the
// weight's gradient in registers.
template <class T>
__global__ void __launch_bounds__(kThreadsOfRows, 2)
    norm_short_rows_backward(const RmsNormBackward a, int threads_of_row) {
  constexpr int kWidth = kWide<T>;
  __shared__ float sums[2][32];
  extern __shared__ float dweights[];  // [rows at once, dim]
  const int rows_at_once = static_cast<int>(blockDim.x) / threads_of_row;
  const int own = static_cast<int>(threadIdx.x) / threads_of_row;
  const int column = static_cast<int>(threadIdx.x) % threads_of_row * kWidth;
  const bool within = column < a.dim;
  const Load<T> weight = within ? load_at<T>(a.weight, column) : Load<T>{};
  float dweight[kWidth] = {};
  const int64_t step = static_cast<int64_t>(gridDim.x) * rows_at_once;
  int64_t first = static_cast<int64_t>(blockIdx.x) * rows_at_once;
  OfRow<T> next = read_row<T>(a, first + own, column);
  for (int turn = 0; first < a.rows; first += step, turn ^= 1) {
    const OfRow<T> now = next;
    const int64_t row = first + own;
    next = read_row<T>(a, row + step, column);
    float dot = 0;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float product =
          to_float(now.x.values[j]) * to_float(now.dy.values[j]);
      dot += product * to_float(weight.values[j]);
      dweight[j] += product * now.rstd;
    }
    dot = over_row(dot, threads_of_row / 32, turn, sums);
    const float pull =
        dot / static_cast<float>(a.dim) * now.rstd * now.rstd * now.rstd;
    if (!within || row >= a.rows) continue;
    Load<T> dx;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float straight = now.rstd * to_float(weight.values[j]) *
                             to_float(now.dy.values[j]);
      dx.values[j] = from_float<T>(to_float(now.dsum.values[j]) + straight -
                                   to_float(now.x.values[j]) * pull);
    }
    load_at<T>(a.dx, row * a.dim + column) = dx;
  }
  if (within) store(dweights + own * a.dim + column, dweight);
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < a.dim;
       c += static_cast<int>(blockDim.x)) {
    float sum = 0;
    for (int r = 0; r < rows_at_once; ++r) sum += dweights[r * a.dim + c];
    a.partial[blockIdx.x * a.dim + c] = sum;
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

template <class T>
void start_short_rows(const RmsNormBackward& call, int64_t num_loads,
                      Stream stream) {
  const int of_row = threads_for(num_loads, kThreadsOfRows);
  const int rows_at_once = kThreadsOfRows / of_row;
  const auto shared = rows_at_once * call.dim * sizeof(float);
  norm_short_rows_backward<T>
      <<<call.num_blocks, rows_at_once * of_row, shared, stream>>>(call,
                                                                   of_row);
}

template <class T, int kWidth>
void start(const RmsNormBackward& call, Stream stream) {
  const int64_t num_loads = call.dim / kWidth;
  if (kWidth > 1 && num_loads <= kThreadsOfRows) {
    start_short_rows<T>(call, num_loads, stream);
  } else {
    const int threads = threads_for(num_loads, kMostThreads);
    norm_rows_backward<T, kWidth>
        <<<call.num_blocks, threads, call.dim * sizeof(float), stream>>>(call);
  }
  const auto blocks =
      static_cast<unsigned>((call.dim + kColumns - 1) / kColumns);
  sum_partial<T><<<blocks, dim3(kColumns, kRowsAtOnce), 0, stream>>>(call);
}

}  // namespace

void launch(const RmsNormBackward& call, Stream stream) {
  const bool fast = aligned(call.dy) && aligned(call.dsum) && aligned(call.x) &&
                    aligned(call.weight) && aligned(call.dx) &&
                    aligned(call.partial);
  with_loads(call.element, fast, call.dim, [&](auto zero, auto width) {
    start<decltype(zero), decltype(width)::value>(call, stream);
  });
}

}  // namespace tessera::cuda
