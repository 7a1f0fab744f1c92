#include "tessera/kernels/device_math.cuh"

namespace tessera::cuda {
namespace {

constexpr int kMostThreads = 256;

// One block a position of one sequence: its heads share the angles. A thread
// turns kWidth pairs at a time.
template <class T, class Table, int kWidth>
__global__ void turn_pairs(const Rope a) {
  const int64_t batch = blockIdx.x / a.positions;
  const int64_t position = blockIdx.x % a.positions;
  const T* const x = static_cast<const T*>(a.x) + batch * a.from.batch +
                     position * a.from.position;
  T* const y = static_cast<T*>(a.y) + batch * a.to.batch +
               position * a.to.position;
  const Table* const cos =
      static_cast<const Table*>(a.cos) + position * 2 * a.half;
  const Table* const sin =
      static_cast<const Table*>(a.sin) + position * 2 * a.half;
  const int loads_of_head = a.half / kWidth;
  const int num_loads = loads_of_head * static_cast<int>(a.heads);
  for (int v = threadIdx.x; v < num_loads; v += blockDim.x) {
    const int64_t head = v / loads_of_head;
    const int i = v % loads_of_head * kWidth;
    float first[kWidth], second[kWidth];
    float cos_first[kWidth], cos_second[kWidth];
    float sin_first[kWidth], sin_second[kWidth];
    load(x + head * a.from.head + i, first);
    load(x + head * a.from.head + a.half + i, second);
    load(cos + i, cos_first);
    load(cos + a.half + i, cos_second);
    load(sin + i, sin_first);
    load(sin + a.half + i, sin_second);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float u = first[j];
      const float w = second[j];
      if (a.turn == Rope::Turn::forward) {
        first[j] = u * cos_first[j] - w * sin_first[j];
        second[j] = w * cos_second[j] + u * sin_second[j];
      } else {
        first[j] = u * cos_first[j] + w * sin_second[j];
        second[j] = w * cos_second[j] - u * sin_first[j];
      }
    }
    store(y + head * a.to.head + i, first);
    store(y + head * a.to.head + a.half + i, second);
  }
}

template <class T, class Table, int kWidth>
void start(const Rope& call, Stream stream) {
  const int threads =
      threads_for(call.half / kWidth * call.heads, kMostThreads);
  const auto blocks = static_cast<unsigned>(call.batch * call.positions);
  turn_pairs<T, Table, kWidth><<<blocks, threads, 0, stream>>>(call);
}

bool multiples(const Rope::Strides& strides, int width) {
  return strides.batch % width == 0 && strides.head % width == 0 &&
         strides.position % width == 0;
}

template <class T, class Table>
void start_for_width(const Rope& call, Stream stream) {
  constexpr int kWidth = kWide<T>;
  if (aligned(call.x) && aligned(call.y) && aligned(call.cos) &&
      aligned(call.sin) && call.half % kWidth == 0 &&
      multiples(call.from, kWidth) && multiples(call.to, kWidth)) {
    start<T, Table, kWidth>(call, stream);
  } else {
    start<T, Table, 1>(call, stream);
  }
}

}  // namespace

void launch(const Rope& call, Stream stream) {
  with_type(call.element, [&](auto zero) {
    using T = decltype(zero);
    if (call.table == Element::float32) {
      start_for_width<T, float>(call, stream);
    } else {
      start_for_width<T, T>(call, stream);
    }
  });
}

}  // namespace tessera::cuda
