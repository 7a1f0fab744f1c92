#include "tessera/kernels/device_math.cuh"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kLooksBetweenStops = 4096;

// All that this rank wrote or let others write before it is seen by a peer that
// has read the flag.
__device__ void raise(uint64_t* flag, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value)
               : "memory");
}

__device__ uint64_t look_at(const uint64_t* flag) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];"
               : "=l"(value)
               : "l"(flag)
               : "memory");
  return value;
}

// One warp: a thread for each peer.
__global__ void meet(const PeerMeeting m) {
  __shared__ uint64_t epoch;
  if (threadIdx.x == 0) epoch = ++*m.epoch;
  __syncthreads();
  const int peer = static_cast<int>(threadIdx.x);
  if (peer < m.num_ranks && peer != m.rank) {
    __threadfence_system();
    raise(m.peer_flags[peer] + m.rank, epoch);
    for (int looks = 1; look_at(m.own_flags + peer) < epoch; ++looks) {
      const bool asks = looks % kLooksBetweenStops == 0;
      if (asks && *static_cast<const volatile int*>(m.stop) != 0) break;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0 && m.number != 0) {
    *static_cast<volatile uint64_t*>(m.arrived) = m.number;
  }
}

template <class From, class To, int kWidth>
__global__ void sum(const SumOfParts s, int64_t first, int64_t numel) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * kWidth;
  int64_t i =
      (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kWidth;
  for (; i < numel; i += step) {
    float total[kWidth];
    load(static_cast<const From*>(s.parts[0]) + first + i, total);
    for (int p = 1; p < s.num_parts; ++p) {
      float part[kWidth];
      load(static_cast<const From*>(s.parts[p]) + first + i, part);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) total[j] += part[j];
    }
#pragma unroll
    for (int j = 0; j < kWidth; ++j) total[j] *= s.scale;
    store(static_cast<To*>(s.output) + first + i, total);
  }
}

template <class To, int kWidth>
__global__ void cast(const CastToTwo c, int64_t first, int64_t numel) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * kWidth;
  int64_t i =
      (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kWidth;
  for (; i < numel; i += step) {
    float values[kWidth];
    load(c.input + first + i, values);
    store(static_cast<To*>(c.outputs[0]) + first + i, values);
    store(static_cast<To*>(c.outputs[1]) + first + i, values);
  }
}

// Beside the compute of the step: blocks enough for the memory's speed, and no
// more.
constexpr int64_t kMostBlocks = 264;

unsigned blocks_for(int64_t numel, int width) {
  const int64_t per_block = static_cast<int64_t>(kThreads) * width;
  const int64_t wanted = (numel + per_block - 1) / per_block;
  return static_cast<unsigned>(wanted < kMostBlocks ? wanted : kMostBlocks);
}

template <class From, class To, int kWidth>
void start(const SumOfParts& call, int64_t first, int64_t numel,
           Stream stream) {
  if (numel == 0) return;
  sum<From, To, kWidth><<<blocks_for(numel, kWidth), kThreads, 0, stream>>>(
      call, first, numel);
}

template <class To, int kWidth>
void start(const CastToTwo& call, int64_t first, int64_t numel,
           Stream stream) {
  if (numel == 0) return;
  cast<To, kWidth><<<blocks_for(numel, kWidth), kThreads, 0, stream>>>(
      call, first, numel);
}

bool all_aligned(const SumOfParts& call) {
  bool all = aligned(call.output);
  for (int p = 0; p < call.num_parts; ++p) all = all && aligned(call.parts[p]);
  return all;
}

template <class From, class To>
void sum_as(const SumOfParts& call, Stream stream) {
  constexpr int kWidth = 8;
  const int64_t wide = all_aligned(call) ? call.numel / kWidth * kWidth : 0;
  start<From, To, kWidth>(call, 0, wide, stream);
  start<From, To, 1>(call, wide, call.numel - wide, stream);
}

template <class To>
void cast_to(const CastToTwo& call, Stream stream) {
  constexpr int kWidth = 8;
  const bool wide_ones = aligned(call.input) && aligned(call.outputs[0]) &&
                         aligned(call.outputs[1]);
  const int64_t wide = wide_ones ? call.numel / kWidth * kWidth : 0;
  start<To, kWidth>(call, 0, wide, stream);
  start<To, 1>(call, wide, call.numel - wide, stream);
}

}  // namespace

void launch(const PeerMeeting& call, Stream stream) {
  meet<<<1, 32, 0, stream>>>(call);
}

void launch(const SumOfParts& call, Stream stream) {
  with_type(call.from, [&](auto zero) {
    using From = decltype(zero);
    if (call.to == call.from) return sum_as<From, From>(call, stream);
    sum_as<From, float>(call, stream);
  });
}

void launch(const CastToTwo& call, Stream stream) {
  with_type(call.to, [&](auto zero) {
    using To = decltype(zero);
    cast_to<To>(call, stream);
  });
}

}  // namespace tessera::cuda
