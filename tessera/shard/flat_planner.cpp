#include "tessera/shard/flat_planner.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "tessera/shard/round_up.h"

namespace tessera {

void FlatPlanner::add(const std::vector<int64_t>& shape) {
  const size_t index = parameters_.size();
  const int64_t row_numel = std::accumulate(shape.begin() + 1, shape.end(),
                                            int64_t{1}, std::multiplies<>());
  const int64_t numel = shape[0] * row_numel;
  FlatParameter& parameter = parameters_.emplace_back();
  if (numel == 0) return;
  parameter.numel = numel;
  parameter.row_numel = row_numel;
  if (shape.size() == 1) {
    vectors_.push_back({index, numel, FlatItem::Kind::vector});
  } else {
    put(draft_of(row_numel), {index, shape[0], FlatItem::Kind::matrix});
  }
}

FlatDraft& FlatPlanner::draft_of(int64_t row_numel) {
  auto [entry, is_new] = drafts_.try_emplace(row_numel);
  if (is_new) {
    entry->second.row_numel = row_numel;
    entry->second.align_rows = align_ / std::gcd(align_, row_numel);
  }
  return entry->second;
}

void FlatPlanner::put(FlatDraft& draft, FlatItem item) {
  draft.items.push_back(item);
  draft.used_rows += item.rows;
}

void FlatPlanner::plan() {
  bound_ = bound();
  place_matrices();
  place_vectors();
  place_rows_of_one();
}

// The largest padding that is still below world_size * (sum of row lengths).
int64_t FlatPlanner::bound() const {
  int64_t sum = !vectors_.empty() && !drafts_.contains(1) ? 1 : 0;
  for (const auto& [row_numel, draft] : drafts_) sum += row_numel;
  return world_size_ * sum - 1;
}

int64_t FlatPlanner::capacity(const FlatDraft& draft) const {
  return world_size_ * draft.shard_rows * draft.row_numel;
}

// All buffers but that of rows of one element. What the bound leaves is spent
// on alignment, shortest rows first since theirs costs least.
void FlatPlanner::place_matrices() {
  const bool rows_of_one = !vectors_.empty() || drafts_.contains(1);
  int64_t spare = bound_ - (rows_of_one ? world_size_ - 1 : 0);
  for (const auto& [row_numel, draft] : drafts_) {
    if (row_numel == 1) continue;
    const int64_t rows = round_up(draft.used_rows, world_size_);
    spare -= (rows - draft.used_rows) * row_numel;
  }
  for (auto entry = drafts_.rbegin(); entry != drafts_.rend(); ++entry) {
    if (entry->first != 1) size_and_place(entry->second, spare);
  }
}

void FlatPlanner::size_and_place(FlatDraft& draft, int64_t& spare) {
  // Parameters that leave the next start aligned come first.
  const auto order = [&draft](const FlatItem& item) {
    return std::pair(item.kind, item.rows % draft.align_rows != 0);
  };
  std::ranges::stable_sort(draft.items, {}, order);
  choose_shard_rows(draft, spare);
  place_items(draft);
}

// Best: all parameters and all ranks' parts start aligned. Second: all
// parameters. Last: as few rows as possible.
void FlatPlanner::choose_shard_rows(FlatDraft& draft, int64_t& spare) const {
  int64_t aligned = 0;
  for (const FlatItem& item : draft.items) {
    aligned = round_up(aligned, draft.align_rows) + item.rows;
  }
  const int64_t least = ceil_div(draft.used_rows, world_size_);
  const int64_t second = ceil_div(aligned, world_size_);
  draft.shard_rows = least;
  for (const int64_t rows : {round_up(second, draft.align_rows), second}) {
    const int64_t cost = (rows - least) * world_size_ * draft.row_numel;
    if (cost > spare) continue;
    spare -= cost;
    draft.shard_rows = rows;
    return;
  }
}

void FlatPlanner::place_items(FlatDraft& draft) {
  int64_t free_rows = world_size_ * draft.shard_rows - draft.used_rows;
  int64_t row = 0;
  for (const FlatItem& item : draft.items) {
    const int64_t gap = round_up(row, draft.align_rows) - row;
    if (gap <= free_rows) {
      row += gap;
      free_rows -= gap;
    }
    place(draft, item.index, row * draft.row_numel);
    row += item.rows;
  }
}

void FlatPlanner::place(FlatDraft& draft, size_t index, int64_t offset) {
  FlatParameter& parameter = parameters_[index];
  parameter.full_offset = offset;
  parameter.buffer =
      std::distance(drafts_.begin(), drafts_.find(draft.row_numel));
  draft.end = offset + parameter.numel;
}

// Largest first: they are the hardest to find room for.
void FlatPlanner::place_vectors() {
  std::ranges::stable_sort(vectors_, std::greater<>(), &FlatItem::rows);
  std::vector<FlatItem> rest;
  for (const FlatItem& item : vectors_) {
    if (!fill(item, align_) && !fill(item, 1)) rest.push_back(item);
  }
  std::ranges::sort(rest, {}, &FlatItem::index);
  for (const FlatItem& item : rest) put(draft_of(1), item);
}

bool FlatPlanner::fill(const FlatItem& item, int64_t align) {
  for (auto& [row_numel, draft] : drafts_) {
    const int64_t offset = round_up(draft.end, align);
    if (row_numel == 1 || offset + item.rows > capacity(draft)) continue;
    place(draft, item.index, offset);
    return true;
  }
  return false;
}

void FlatPlanner::place_rows_of_one() {
  if (!drafts_.contains(1)) return;
  FlatDraft& ones = drafts_.at(1);
  int64_t padding = round_up(ones.used_rows, world_size_);
  for (const auto& [row_numel, draft] : drafts_) {
    if (row_numel != 1) padding += capacity(draft);
  }
  for (const FlatParameter& parameter : parameters_) padding -= parameter.numel;
  int64_t spare = bound_ - padding;
  size_and_place(ones, spare);
}

}  // namespace tessera
