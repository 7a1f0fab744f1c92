// The CUDA kernels as plain C++ sees them: pointers and sizes.
//
// No torch headers here, so that a .cu file compiles in seconds. Each struct is
// one launch; `launch` puts it on a stream and returns at once, without waiting
// and without allocating. Sums are taken in float32. Pointers need not be
// aligned: those that are to 16 bytes take the fast path.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace tessera::cuda {

using Stream = CUstream_st*;

enum class Element { float32, bfloat16, float16 };

/// y = x / sqrt(mean(x^2) + eps) * weight for each of `rows` rows of `dim`
/// elements. With a residual, sum = x + residual is normed instead of x.
struct RmsNorm {
  Element element;
  int64_t rows;
  int64_t dim;
  float eps;
  const void* x;
  const void* residual;  // null: none
  const void* weight;    // [dim]
  void* sum;             // null without a residual
  void* y;
  float* rstd;  // [rows]: what the backward needs
};
void launch(const RmsNorm& call, Stream stream);

/// The gradients. Each of `num_blocks` blocks sums its rows' part of the
/// weight's gradient into a row of `partial`; a second kernel sums those: no
/// atomics, so the same bits in every run.
struct RmsNormBackward {
  Element element;
  int64_t rows;
  int64_t dim;
  int num_blocks;
  const void* dy;
  const void* dsum;  // gradient of the sum itself, added to dx; null: none
  const void* x;     // what was normed
  const void* weight;
  const float* rstd;
  void* dx;
  float* partial;  // [num_blocks, dim]
  void* dweight;   // [dim]
};
void launch(const RmsNormBackward& call, Stream stream);
/// Longer rows, in float, do not fit a block's 48 KiB beside its other sums.
inline constexpr int64_t kLongestNorm = 12 * 1000;
/// Bytes. Up to here a thread has one load of a row, and a block some rows at
/// once.
inline constexpr int64_t kLongestShortRow = 512 * 16;

/// Pairs (i, i + half) of rows of 2 * half elements, each turned by the angle
/// of its position. Rows are contiguous and lie where the strides say.
struct Rope {
  enum class Turn { forward, back };
  struct Strides {
    int64_t batch, head, position;  // elements
  };
  Element element;
  Element table;  // float32, or as `element`
  Turn turn;
  int64_t batch, heads, positions;
  int half;
  const void* x;
  Strides from;
  void* y;
  Strides to;
  const void* cos;  // [positions, 2 * half], contiguous
  const void* sin;
};
void launch(const Rope& call, Stream stream);

/// y = silu(gate) * up, element by element.
struct Swiglu {
  Element element;
  int64_t numel;
  const void* gate;
  const void* up;
  void* y;
};
void launch(const Swiglu& call, Stream stream);

struct SwigluBackward {
  Element element;
  int64_t numel;
  const void* dy;
  const void* gate;
  const void* up;
  void* dgate;
  void* dup;
};
void launch(const SwigluBackward& call, Stream stream);

/// The gradients written over `gate` and `up`, and the product over `dy`.
struct SwigluInPlace {
  Element element;
  int64_t numel;
  void* dy;
  void* gate;
  void* up;
};
void launch(const SwigluInPlace& call, Stream stream);

/// -log softmax(logits)[target] of each row, and the gradient of their sum.
/// A target outside [0, vocab) that is not `ignored` gives NaN in both.
struct CrossEntropy {
  Element element;
  int64_t rows;
  int64_t vocab;
  int64_t row_stride;  // of logits and gradient
  int64_t ignored;     // targets that count nothing
  const void* logits;
  const int64_t* targets;
  float* losses;   // [rows]
  void* gradient;  // null: not wanted. May be `logits` itself
};
void launch(const CrossEntropy& call, Stream stream);

/// AdamW on floats; see adamw.h. `copy` is of the type `element`.
struct AdamW {
  Element element;
  int64_t numel;
  float* parameter;
  const float* gradient;
  float* exp_avg;
  float* exp_avg_sq;
  float* max_exp_avg_sq;  // null: no amsgrad
  void* copy;             // null: none
  const float* step;
  const float* rate;
  const float* skip;    // null: 0
  const float* factor;  // null: 1
  double beta1, beta2, eps, weight_decay;
};
void launch(const AdamW& call, Stream stream);

/// norm = sqrt(sum of squares of `values`), all of one element type. A tensor
/// without elements has 0.
struct TwoNorm {
  Element element;
  int64_t numel;
  const void* values;
  float* partial;  // [kTwoNormBlocks]
  float* norm;
};
inline constexpr int kTwoNormBlocks = 528;
/// All of them, in few kernels.
void launch(const TwoNorm* calls, int count, Stream stream);

/// Ranks of one machine that copy to and from each other's memory.
inline constexpr int kMostPeers = 16;

/// Tells each peer that this rank has come so far on its stream, then waits
/// until all have: what they wrote before it is there, and what they read
/// before it they need no more. `epoch` counts the meetings on the device, so
/// that one in a replayed graph is like any other.
struct PeerMeeting {
  int rank;
  int num_ranks;  // kMostPeers at most
  uint64_t* epoch;
  uint64_t* own_flags;  // [num_ranks], written by the peers
  uint64_t* peer_flags[kMostPeers];  // theirs, and its own
  const int* stop;    // on the host; not 0: waits no longer
  uint64_t* arrived;  // on the host; becomes `number` at the end
  uint64_t number;    // 0: leaves `arrived`
};
void launch(const PeerMeeting& call, Stream stream);

/// output = scale * (part 0 + part 1 + ...), summed in float in this order.
/// `from` is the type of the parts, `to` that of the output: `from`, or float.
struct SumOfParts {
  Element from;
  Element to;
  int64_t numel;
  int num_parts;  // kMostPeers at most
  float scale;
  const void* parts[kMostPeers];
  void* output;
};
/// All of them, in few kernels.
void launch(const SumOfParts* calls, int count, Stream stream);

/// Both outputs = input, rounded to `to`: bfloat16 or float16.
struct CastToTwo {
  Element to;
  int64_t numel;
  const float* input;
  void* outputs[2];
};
void launch(const CastToTwo* calls, int count, Stream stream);

}  // namespace tessera::cuda
