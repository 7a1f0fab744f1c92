// How `plan_flat_layout` packs: which buffer each parameter goes into, how many
// rows of it a rank owns, and where in it the parameter starts.
//
//   1. Parameters of two and more dims, one buffer per row length.
//   2. 1-D parameters, into what those leave free at their end, largest first.
//   3. The rest and all rows of one element, into the last buffer.
//
// Every buffer has as few rows as its parameters need. Where the bound on
// padding leaves room, it gets more, so that parameters start aligned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "tessera/shard/flat_layout.h"

namespace tessera {

/// A parameter on its way into a buffer.
struct FlatItem {
  enum class Kind { matrix, vector };  // two and more dims, or one

  size_t index = 0;
  int64_t rows = 0;
  Kind kind = Kind::matrix;
};

/// A buffer in the making. All positions count rows, but for `end`.
struct FlatDraft {
  int64_t row_numel = 1;
  int64_t align_rows = 1;  // every so many rows a row starts aligned
  std::vector<FlatItem> items;
  int64_t used_rows = 0;
  int64_t shard_rows = 0;
  int64_t end = 0;  // elements taken so far, fillers included
};

/// Add all parameters in order, `plan` once, then read the results.
class FlatPlanner {
 public:
  using Drafts = std::map<int64_t, FlatDraft, std::greater<>>;  // by row length

  /// align: elements that parameters should start at a multiple of.
  FlatPlanner(int64_t world_size, int64_t align)
      : world_size_(world_size), align_(align) {}

  void add(const std::vector<int64_t>& shape);
  void plan();

  [[nodiscard]] const Drafts& drafts() const { return drafts_; }
  /// Their offsets count from the start of their buffer.
  [[nodiscard]] const std::vector<FlatParameter>& parameters() const {
    return parameters_;
  }

 private:
  FlatDraft& draft_of(int64_t row_numel);
  void put(FlatDraft& draft, FlatItem item);
  [[nodiscard]] int64_t bound() const;
  [[nodiscard]] int64_t capacity(const FlatDraft& draft) const;
  void size_and_place(FlatDraft& draft, int64_t& spare);
  void choose_shard_rows(FlatDraft& draft, int64_t& spare) const;
  void place_items(FlatDraft& draft);
  void place(FlatDraft& draft, size_t index, int64_t offset);
  [[nodiscard]] bool fill(const FlatItem& item, int64_t align);
  void place_matrices();
  void place_vectors();
  void place_rows_of_one();

  int64_t world_size_;
  int64_t align_;
  Drafts drafts_;
  std::vector<FlatItem> vectors_;
  std::vector<FlatParameter> parameters_;
  int64_t bound_ = 0;
};

}  // namespace tessera
