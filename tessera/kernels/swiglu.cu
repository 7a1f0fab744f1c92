#include "tessera/kernels/device_math.cuh"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 256;

__device__ float sigmoid(float value) { return 1.0f / (1.0f + expf(-value)); }

template <class T, int kWidth>
__global__ void multiply(const Swiglu a) {
  const int64_t i =
      (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kWidth;
  if (i >= a.numel) return;
  float gate[kWidth];
  float up[kWidth];
  load(static_cast<const T*>(a.gate) + i, gate);
  load(static_cast<const T*>(a.up) + i, up);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) up[j] *= gate[j] * sigmoid(gate[j]);
  store(static_cast<T*>(a.y) + i, up);
}

/// What came of one element.
struct Back {
  float dgate, dup, y;
};

__device__ Back back(float dy, float gate, float up) {
  const float open = sigmoid(gate);
  const float slope = open * (1.0f + gate * (1.0f - open));
  return {dy * up * slope, dy * gate * open, up * (gate * open)};
}

template <class T, int kWidth>
__global__ void multiply(const SwigluInPlace a) {
  const int64_t i =
      (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kWidth;
  if (i >= a.numel) return;
  float dy[kWidth];
  float gate[kWidth];
  float up[kWidth];
  load(static_cast<const T*>(a.dy) + i, dy);
  load(static_cast<const T*>(a.gate) + i, gate);
  load(static_cast<const T*>(a.up) + i, up);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    const Back result = back(dy[j], gate[j], up[j]);
    gate[j] = result.dgate;
    up[j] = result.dup;
    dy[j] = result.y;
  }
  store(static_cast<T*>(a.gate) + i, gate);
  store(static_cast<T*>(a.up) + i, up);
  store(static_cast<T*>(a.dy) + i, dy);
}

template <class T, int kWidth>
__global__ void multiply(const SwigluBackward a) {
  const int64_t i =
      (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kWidth;
  if (i >= a.numel) return;
  float dy[kWidth];
  float gate[kWidth];
  float up[kWidth];
  load(static_cast<const T*>(a.dy) + i, dy);
  load(static_cast<const T*>(a.gate) + i, gate);
  load(static_cast<const T*>(a.up) + i, up);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    const Back result = back(dy[j], gate[j], up[j]);
    gate[j] = result.dgate;
    up[j] = result.dup;
  }
  store(static_cast<T*>(a.dgate) + i, gate);
  store(static_cast<T*>(a.dup) + i, up);
}

template <class T, int kWidth, class Call>
void start(const Call& call, Stream stream) {
  const int64_t loads = (call.numel + kWidth - 1) / kWidth;
  const auto blocks = static_cast<unsigned>((loads + kThreads - 1) / kThreads);
  multiply<T, kWidth><<<blocks, kThreads, 0, stream>>>(call);
}

template <class Call>
void start_for_type(const Call& call, bool fast, Stream stream) {
  with_loads(call.element, fast, call.numel, [&](auto zero, auto width) {
    start<decltype(zero), decltype(width)::value>(call, stream);
  });
}

}  // namespace

void launch(const Swiglu& call, Stream stream) {
  start_for_type(
      call, aligned(call.gate) && aligned(call.up) && aligned(call.y), stream);
}

void launch(const SwigluBackward& call, Stream stream) {
  const bool fast = aligned(call.dy) && aligned(call.gate) &&
                    aligned(call.up) && aligned(call.dgate) &&
                    aligned(call.dup);
  start_for_type(call, fast, stream);
}

void launch(const SwigluInPlace& call, Stream stream) {
  start_for_type(
      call, aligned(call.dy) && aligned(call.gate) && aligned(call.up), stream);
}

}  // namespace tessera::cuda
