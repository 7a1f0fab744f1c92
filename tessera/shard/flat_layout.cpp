#include "tessera/shard/flat_layout.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr int64_t kParameterBytes = 128;
constexpr int64_t kBufferBytes = 256;
constexpr int64_t kMasterBytes = 4;

enum class Kind { matrix, vector };  // two and more dims, or one

int64_t ceil_div(int64_t value, int64_t by) { return (value + by - 1) / by; }

int64_t round_up(int64_t value, int64_t step) {
  return ceil_div(value, step) * step;
}

// The smallest number of elements of `element_bytes` that fills whole `bytes`.
int64_t elements_of(int64_t bytes, int64_t element_bytes) {
  return bytes / std::gcd(bytes, element_bytes);
}

struct Item {
  size_t index = 0;
  int64_t rows = 0;
  Kind kind = Kind::matrix;
};

// A buffer in the making. All positions count rows, but for `end`.
struct Draft {
  int64_t row_numel = 1;
  int64_t align_rows = 1;  // every so many rows a row starts aligned
  std::vector<Item> items;
  int64_t used_rows = 0;
  int64_t shard_rows = 0;
  int64_t end = 0;  // elements taken so far, fillers included
};

class Planner {
 public:
  explicit Planner(const LayoutOptions& options)
      : world_size_(options.world_size),
        align_(std::lcm(elements_of(kParameterBytes, options.compute_bytes),
                        elements_of(kParameterBytes, options.reduce_bytes))) {}

  void add(size_t index, const std::vector<int64_t>& shape);
  void plan();

  // Offsets in the parameters are still relative to their buffer.
  [[nodiscard]] const std::map<int64_t, Draft, std::greater<>>& drafts() const {
    return drafts_;
  }
  [[nodiscard]] std::vector<FlatParameter>& parameters() { return parameters_; }

 private:
  Draft& draft_of(int64_t row_numel);
  void put(Draft& draft, Item item);
  [[nodiscard]] int64_t bound() const;
  [[nodiscard]] int64_t capacity(const Draft& draft) const;
  void size_and_place(Draft& draft, int64_t& spare);
  void choose_shard_rows(Draft& draft, int64_t& spare) const;
  void place_items(Draft& draft);
  void place(Draft& draft, size_t index, int64_t offset);
  [[nodiscard]] bool fill(const Item& item, int64_t align);
  void place_matrices();
  void place_vectors();
  void place_rows_of_one();

  int64_t world_size_;
  int64_t align_;  // elements that parameters should start at a multiple of
  std::map<int64_t, Draft, std::greater<>> drafts_;  // by row length
  std::vector<Item> vectors_;
  std::vector<FlatParameter> parameters_;
  int64_t bound_ = 0;
};

void Planner::add(size_t index, const std::vector<int64_t>& shape) {
  const int64_t row_numel = std::accumulate(shape.begin() + 1, shape.end(),
                                            int64_t{1}, std::multiplies<>());
  const int64_t numel = shape[0] * row_numel;
  FlatParameter& parameter = parameters_.emplace_back();
  if (numel == 0) return;
  parameter.numel = numel;
  parameter.row_numel = row_numel;
  if (shape.size() == 1) {
    vectors_.push_back({index, numel, Kind::vector});
  } else {
    put(draft_of(row_numel), {index, shape[0], Kind::matrix});
  }
}

Draft& Planner::draft_of(int64_t row_numel) {
  auto [entry, is_new] = drafts_.try_emplace(row_numel);
  if (is_new) {
    entry->second.row_numel = row_numel;
    entry->second.align_rows = align_ / std::gcd(align_, row_numel);
  }
  return entry->second;
}

void Planner::put(Draft& draft, Item item) {
  draft.items.push_back(item);
  draft.used_rows += item.rows;
}

void Planner::plan() {
  bound_ = bound();
  place_matrices();
  place_vectors();
  place_rows_of_one();
}

// The largest padding that is still below world_size * (sum of row lengths).
int64_t Planner::bound() const {
  int64_t sum = !vectors_.empty() && !drafts_.contains(1) ? 1 : 0;
  for (const auto& [row_numel, draft] : drafts_) sum += row_numel;
  return world_size_ * sum - 1;
}

int64_t Planner::capacity(const Draft& draft) const {
  return world_size_ * draft.shard_rows * draft.row_numel;
}

// All buffers but that of rows of one element. What the bound leaves is spent
// on alignment, shortest rows first since theirs costs least.
void Planner::place_matrices() {
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

void Planner::size_and_place(Draft& draft, int64_t& spare) {
  // Parameters that leave the next start aligned come first.
  const auto order = [&draft](const Item& item) {
    return std::pair(item.kind, item.rows % draft.align_rows != 0);
  };
  std::ranges::stable_sort(draft.items, {}, order);
  choose_shard_rows(draft, spare);
  place_items(draft);
}

// Best: all parameters and all ranks' parts start aligned. Second: all
// parameters. Last: as few rows as possible.
void Planner::choose_shard_rows(Draft& draft, int64_t& spare) const {
  int64_t aligned = 0;
  for (const Item& item : draft.items) {
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

void Planner::place_items(Draft& draft) {
  int64_t free_rows = world_size_ * draft.shard_rows - draft.used_rows;
  int64_t row = 0;
  for (const Item& item : draft.items) {
    const int64_t gap = round_up(row, draft.align_rows) - row;
    if (gap <= free_rows) {
      row += gap;
      free_rows -= gap;
    }
    place(draft, item.index, row * draft.row_numel);
    row += item.rows;
  }
}

void Planner::place(Draft& draft, size_t index, int64_t offset) {
  FlatParameter& parameter = parameters_[index];
  parameter.full_offset = offset;
  parameter.buffer =
      std::distance(drafts_.begin(), drafts_.find(draft.row_numel));
  draft.end = offset + parameter.numel;
}

// Largest first: they are the hardest to find room for.
void Planner::place_vectors() {
  std::ranges::stable_sort(vectors_, std::greater<>(), &Item::rows);
  std::vector<Item> rest;
  for (const Item& item : vectors_) {
    if (!fill(item, align_) && !fill(item, 1)) rest.push_back(item);
  }
  std::ranges::sort(rest, {}, &Item::index);
  for (const Item& item : rest) put(draft_of(1), item);
}

bool Planner::fill(const Item& item, int64_t align) {
  for (auto& [row_numel, draft] : drafts_) {
    const int64_t offset = round_up(draft.end, align);
    if (row_numel == 1 || offset + item.rows > capacity(draft)) continue;
    place(draft, item.index, offset);
    return true;
  }
  return false;
}

void Planner::place_rows_of_one() {
  if (!drafts_.contains(1)) return;
  Draft& ones = drafts_.at(1);
  int64_t padding = round_up(ones.used_rows, world_size_);
  for (const auto& [row_numel, draft] : drafts_) {
    if (row_numel != 1) padding += capacity(draft);
  }
  for (const FlatParameter& parameter : parameters_) padding -= parameter.numel;
  int64_t spare = bound_ - padding;
  size_and_place(ones, spare);
}

void check(std::span<const std::vector<int64_t>> shapes,
           const LayoutOptions& options) {
  require(options.world_size >= 1, [&] {
    return str("plan_flat_layout: world_size is ", options.world_size,
               "; give 1 or more.");
  });
  require(options.compute_bytes >= 1 && options.reduce_bytes >= 1, [&] {
    return str("plan_flat_layout: compute_bytes is ", options.compute_bytes,
               " and reduce_bytes ", options.reduce_bytes,
               "; give the bytes of an element, 1 or more.");
  });
  for (size_t i = 0; i < shapes.size(); ++i) {
    require(!shapes[i].empty(), [&] {
      return str("plan_flat_layout: parameter ", i,
                 " has no dims, so no rows to shard; give it the shape {1}.");
    });
    for (const int64_t size : shapes[i]) {
      require(size >= 0, [&] {
        return str("plan_flat_layout: parameter ", i, " has a dim of size ",
                   size, "; give sizes of 0 or more.");
      });
    }
  }
}

}  // namespace

int64_t FlatLayout::padding() const {
  int64_t padding = 0;
  for (const FlatBuffer& buffer : buffers_) {
    padding += world_size_ * buffer.shard_numel;
  }
  for (const FlatParameter& parameter : parameters_) padding -= parameter.numel;
  return padding;
}

LocalPiece FlatLayout::piece(size_t index, int64_t rank) const {
  require(index < parameters_.size(), [&] {
    return str("FlatLayout::piece: no parameter ", index, " among ",
               parameters_.size(), "; count from 0.");
  });
  require(rank >= 0 && rank < world_size_, [&] {
    return str("FlatLayout::piece: rank is ", rank, ", world_size ",
               world_size_, "; give a rank from 0 to world_size - 1.");
  });
  const FlatParameter& parameter = parameters_[index];
  if (parameter.numel == 0) return {};
  const FlatBuffer& buffer = buffers_[static_cast<size_t>(parameter.buffer)];
  const int64_t shard_begin = buffer.full_offset + rank * buffer.shard_numel;
  const int64_t begin = std::max(shard_begin, parameter.full_offset);
  const int64_t end = std::min(shard_begin + buffer.shard_numel,
                               parameter.full_offset + parameter.numel);
  if (begin >= end) return {};
  return {.first_row = (begin - parameter.full_offset) / parameter.row_numel,
          .num_rows = (end - begin) / parameter.row_numel,
          .numel = end - begin,
          .full_offset = begin,
          .shard_offset = buffer.shard_offset + begin - shard_begin};
}

FlatLayout plan_flat_layout(std::span<const std::vector<int64_t>> shapes,
                            const LayoutOptions& options) {
  check(shapes, options);
  Planner planner(options);
  for (size_t i = 0; i < shapes.size(); ++i) planner.add(i, shapes[i]);
  planner.plan();

  FlatLayout layout;
  layout.world_size_ = options.world_size;
  const int64_t align =
      std::lcm(elements_of(kBufferBytes, kMasterBytes),
               std::lcm(elements_of(kBufferBytes, options.compute_bytes),
                        elements_of(kBufferBytes, options.reduce_bytes)));
  for (const auto& [row_numel, draft] : planner.drafts()) {
    const FlatBuffer& buffer = layout.buffers_.emplace_back(
        FlatBuffer{.row_numel = row_numel,
                   .shard_numel = draft.shard_rows * row_numel,
                   .full_offset = round_up(layout.full_numel_, align),
                   .shard_offset = round_up(layout.shard_numel_, align)});
    layout.full_numel_ =
        buffer.full_offset + options.world_size * buffer.shard_numel;
    layout.shard_numel_ = buffer.shard_offset + buffer.shard_numel;
  }
  layout.parameters_ = std::move(planner.parameters());
  for (FlatParameter& parameter : layout.parameters_) {
    if (parameter.numel == 0) continue;
    parameter.full_offset +=
        layout.buffers_[static_cast<size_t>(parameter.buffer)].full_offset;
  }
  return layout;
}

}  // namespace tessera
