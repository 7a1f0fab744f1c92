// Where the parameters of one group live: one flat buffer per row length.
//
// All numbers are elements, never bytes. A row is a slice along dim 0 (a 1-D
// parameter has rows of one element). In each buffer rank r owns
// [r * shard_numel, (r + 1) * shard_numel), a whole number of rows: no row is
// cut between ranks, so a shard keeps its trailing dims at any world size.
// Shapes {5,3} and {3} on two ranks, one buffer of rows of 3:
//
//   element  0              9                  15   18
//            | a: rows 0-2  | a: rows 3 and 4  | b  |
//            '--- rank 0 ---'-------- rank 1 -------'
//
// The full tensors of a group are views of one storage that holds all buffers
// one after the other; a rank's flat master holds its part of each buffer one
// after the other. In both, every buffer starts at a multiple of 256 bytes of
// the compute, the reduce and a 4-byte master dtype. The gaps before those
// starts belong to nobody: no collective carries them, nothing may read them,
// and they are not padding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

struct FlatBuffer {
  int64_t row_numel = 0;     // elements in a row; shard_numel is a multiple
  int64_t shard_numel = 0;   // what one rank owns
  int64_t full_offset = 0;   // in the full storage
  int64_t shard_offset = 0;  // in a rank's flat master
};

/// Where a full parameter lies.
struct FlatParameter {
  int64_t buffer = 0;
  int64_t full_offset = 0;  // in the full storage
  int64_t numel = 0;
  int64_t row_numel = 0;  // 0 for a parameter without elements
};

/// The part of a parameter that one rank owns; all 0 when it owns none.
struct LocalPiece {
  int64_t first_row = 0;
  int64_t num_rows = 0;
  int64_t numel = 0;
  int64_t full_offset = 0;
  int64_t shard_offset = 0;  // in the rank's flat master

  bool operator==(const LocalPiece&) const = default;
};

/// What the packing has to respect.
struct LayoutOptions {
  int64_t world_size = 1;
  int64_t compute_bytes = 4;  // bytes of an element of the full parameters
  int64_t reduce_bytes = 4;   // ... and of the reduce input
};

class FlatLayout {
 public:
  [[nodiscard]] int64_t world_size() const { return world_size_; }
  /// Elements of the full storage, gaps between buffers included.
  [[nodiscard]] int64_t full_numel() const { return full_numel_; }
  /// Elements of a rank's flat master, gaps between buffers included.
  [[nodiscard]] int64_t shard_numel() const { return shard_numel_; }
  /// Longest rows first, so a buffer of rows of one element comes last.
  [[nodiscard]] const std::vector<FlatBuffer>& buffers() const {
    return buffers_;
  }
  /// In the order of the shapes given to `plan_flat_layout`.
  [[nodiscard]] const std::vector<FlatParameter>& parameters() const {
    return parameters_;
  }
  /// Elements of the buffers that belong to no parameter, over all ranks.
  [[nodiscard]] int64_t padding() const;

  /// The rows of parameter `index` that `rank` owns.
  /// Errors: InvalidArgument for an index or a rank that does not exist.
  [[nodiscard]] LocalPiece piece(size_t index, int64_t rank) const;

 private:
  friend FlatLayout plan_flat_layout(
      std::span<const std::vector<int64_t>> shapes, const LayoutOptions&);

  int64_t world_size_ = 1;
  int64_t full_numel_ = 0;
  int64_t shard_numel_ = 0;
  std::vector<FlatBuffer> buffers_;
  std::vector<FlatParameter> parameters_;
};

/// Plans the buffers for parameters that are gathered together.
///
/// Shapes:  each entry is one full parameter, at least 1-D; sizes may be 0.
/// Returns: the same layout for the same input, on every rank. Padding is below
///          world_size times the sum of the distinct row lengths. Parameters
///          start at a multiple of 128 bytes in compute and in reduce dtype
///          where that bound and the rank boundaries allow, buffers at 256.
///          In each buffer all parameters of two and more dims come first. 1-D
///          parameters fill what those leave free at the end of the buffers,
///          unaligned rather than not at all; the rest of them share a buffer
///          of rows of one element.
/// Errors:  InvalidArgument for a 0-D shape, a negative size, world_size or
///          bytes below 1.
/// Cost:    O(n log n); allocates no tensor.
[[nodiscard]] FlatLayout plan_flat_layout(
    std::span<const std::vector<int64_t>> shapes, const LayoutOptions& options);

}  // namespace tessera
