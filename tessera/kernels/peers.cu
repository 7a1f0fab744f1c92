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

// Calls of one kernel, one after the other: each small one would else wait for
// its turn between the compute's kernels.
constexpr int kMostTogether = 8;

template <class Call>
struct Together {
  int count;
  Call calls[kMostTogether];
  int64_t wide[kMostTogether];  // elements that are read kWidth at a time
};

constexpr int kWidth = 8;

/// Calls `at` with the begin of each stretch of `kWide` elements that falls to
/// this thread.
template <int kWide, class At>
__device__ void each_stretch(int64_t begin, int64_t end, const At& at) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * kWide;
  const int64_t thread =
      static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (int64_t i = begin + thread * kWide; i < end; i += step) at(i);
}

template <int kWide, class From, class To>
__device__ void add_up(const SumOfParts& s, int64_t begin, int64_t end) {
  each_stretch<kWide>(begin, end, [&](int64_t i) {
    float total[kWide];
    load(static_cast<const From*>(s.parts[0]) + i, total);
    for (int p = 1; p < s.num_parts; ++p) {
      float part[kWide];
      load(static_cast<const From*>(s.parts[p]) + i, part);
#pragma unroll
      for (int j = 0; j < kWide; ++j) total[j] += part[j];
    }
#pragma unroll
    for (int j = 0; j < kWide; ++j) total[j] *= s.scale;
    store(static_cast<To*>(s.output) + i, total);
  });
}

template <class From, class To>
__global__ void sum(const __grid_constant__ Together<SumOfParts> all) {
  for (int c = 0; c < all.count; ++c) {
    add_up<kWidth, From, To>(all.calls[c], 0, all.wide[c]);
    add_up<1, From, To>(all.calls[c], all.wide[c], all.calls[c].numel);
  }
}

template <int kWide, class To>
__device__ void cast_to_two(const CastToTwo& c, int64_t begin, int64_t end) {
  each_stretch<kWide>(begin, end, [&](int64_t i) {
    float values[kWide];
    load(c.input + i, values);
    store(static_cast<To*>(c.outputs[0]) + i, values);
    store(static_cast<To*>(c.outputs[1]) + i, values);
  });
}

template <class To>
__global__ void cast(const __grid_constant__ Together<CastToTwo> all) {
  for (int c = 0; c < all.count; ++c) {
    cast_to_two<kWidth, To>(all.calls[c], 0, all.wide[c]);
    cast_to_two<1, To>(all.calls[c], all.wide[c], all.calls[c].numel);
  }
}

bool all_aligned(const SumOfParts& call) {
  bool all = aligned(call.output);
  for (int p = 0; p < call.num_parts; ++p) all = all && aligned(call.parts[p]);
  return all;
}
bool all_aligned(const CastToTwo& call) {
  return aligned(call.input) && aligned(call.outputs[0]) &&
         aligned(call.outputs[1]);
}

bool alike(const SumOfParts& a, const SumOfParts& b) {
  return a.from == b.from && a.to == b.to;
}
bool alike(const CastToTwo& a, const CastToTwo& b) { return a.to == b.to; }

// Beside the compute of the step: blocks enough for the memory's speed, and no
// more.
constexpr int64_t kMostBlocks = 264;

template <class Call>
unsigned blocks_for(const Together<Call>& all) {
  int64_t numel = 0;
  for (int c = 0; c < all.count; ++c) numel += all.calls[c].numel;
  const int64_t per_block = static_cast<int64_t>(kThreads) * kWidth;
  const int64_t wanted = (numel + per_block - 1) / per_block;
  return static_cast<unsigned>(wanted < kMostBlocks ? wanted : kMostBlocks);
}

/// Gives `start` the calls in their order, as many alike ones together as fit.
template <class Call, class Start>
void together(const Call* calls, int count, const Start& start) {
  Together<Call> all{};
  for (int i = 0; i < count; ++i) {
    const Call& call = calls[i];
    if (call.numel == 0) continue;
    if (all.count == kMostTogether ||
        (all.count > 0 && !alike(all.calls[0], call))) {
      start(all);
      all.count = 0;
    }
    all.wide[all.count] = all_aligned(call) ? call.numel / kWidth * kWidth : 0;
    all.calls[all.count++] = call;
  }
  if (all.count > 0) start(all);
}

}  // namespace

void launch(const PeerMeeting& call, Stream stream) {
  meet<<<1, 32, 0, stream>>>(call);
}

void launch(const SumOfParts* calls, int count, Stream stream) {
  together(calls, count, [&](const Together<SumOfParts>& all) {
    with_type(all.calls[0].from, [&](auto zero) {
      using From = decltype(zero);
      const unsigned blocks = blocks_for(all);
      if (all.calls[0].to == all.calls[0].from) {
        sum<From, From><<<blocks, kThreads, 0, stream>>>(all);
      } else {
        sum<From, float><<<blocks, kThreads, 0, stream>>>(all);
      }
    });
  });
}

void launch(const CastToTwo* calls, int count, Stream stream) {
  together(calls, count, [&](const Together<CastToTwo>& all) {
    with_type(all.calls[0].to, [&](auto zero) {
      using To = decltype(zero);
      cast<To><<<blocks_for(all), kThreads, 0, stream>>>(all);
    });
  });
}

}  // namespace tessera::cuda
