// What the kernels share: 16-byte loads and stores of any element type as
// floats, and sums over a block.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "tessera/kernels/launch.h"

namespace tessera::cuda {

/// Elements that one load of 16 bytes brings.
template <class T>
inline constexpr int kWide = 16 / static_cast<int>(sizeof(T));

template <class T, int kNum>
struct alignas(sizeof(T) * kNum) Pack {
  T values[kNum];
};

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
__device__ inline float to_float(__half value) { return __half2float(value); }

template <class T>
__device__ T from_float(float value);
template <>
__device__ inline float from_float<float>(float value) {
  return value;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ inline __half from_float<__half>(float value) {
  return __float2half_rn(value);
}

template <class T>
__device__ float rounded(float value) {
  return to_float(from_float<T>(value));
}

/// Reads kWidth elements at `from`, which is aligned to as many, or to 16
/// bytes if that is less.
template <class T, int kWidth>
__device__ void load(const T* from, float (&to)[kWidth]) {
  constexpr int kNum = kWidth < kWide<T> ? kWidth : kWide<T>;
#pragma unroll
  for (int i = 0; i < kWidth; i += kNum) {
    const auto pack = *reinterpret_cast<const Pack<T, kNum>*>(from + i);
#pragma unroll
    for (int j = 0; j < kNum; ++j) to[i + j] = to_float(pack.values[j]);
  }
}

template <class T, int kWidth>
__device__ void store(T* to, const float (&from)[kWidth]) {
  constexpr int kNum = kWidth < kWide<T> ? kWidth : kWide<T>;
#pragma unroll
  for (int i = 0; i < kWidth; i += kNum) {
    Pack<T, kNum> pack;
#pragma unroll
    for (int j = 0; j < kNum; ++j) pack.values[j] = from_float<T>(from[i + j]);
    *reinterpret_cast<Pack<T, kNum>*>(to + i) = pack;
  }
}

struct Add {
  static constexpr float kNothing = 0;
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Largest {
  static constexpr float kNothing = -__builtin_huge_valf();
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

/// `value` of all threads of the block combined, given to all of them. Always
/// in one order. The block is a whole number of warps.
template <class Combine>
__device__ float over_block(float value, Combine combine) {
  __shared__ float of_warp[32];
  for (int offset = 16; offset > 0; offset /= 2) {
    value = combine(value, __shfl_xor_sync(~0u, value, offset));
  }
  const int lane = static_cast<int>(threadIdx.x) % 32;
  __syncthreads();  // the last call's readers are through
  if (lane == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  value = lane < static_cast<int>(blockDim.x) / 32 ? of_warp[lane] : Combine::kNothing;
  for (int offset = 16; offset > 0; offset /= 2) {
    value = combine(value, __shfl_xor_sync(~0u, value, offset));
  }
  return value;
}

/// Threads for a row of so many loads: whole warps, `most` at most.
inline int threads_for(int64_t num_loads, int most) {
  const int64_t warps = (num_loads + 31) / 32;
  return static_cast<int>(warps * 32 < most ? (warps ? warps * 32 : 32) : most);
}

inline bool aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

/// Calls `run` with a value of the type that `element` names.
template <class Run>
void with_type(Element element, const Run& run) {
  switch (element) {
    case Element::float32:
      return run(float{});
    case Element::bfloat16:
      return run(__nv_bfloat16{});
    case Element::float16:
      return run(__half{});
  }
}

/// Calls `run` with a value of the type that `element` names, and with how many
/// elements a load brings: kWide where all begins aligned (`fast`) and in
/// multiples of it (`numel`), else one.
template <class Run>
void with_loads(Element element, bool fast, int64_t numel, const Run& run) {
  with_type(element, [&](auto zero) {
    constexpr int kMany = kWide<decltype(zero)>;
    if (fast && numel % kMany == 0) {
      run(zero, std::integral_constant<int, kMany>{});
    } else {
      run(zero, std::integral_constant<int, 1>{});
    }
  });
}

}  // namespace tessera::cuda
