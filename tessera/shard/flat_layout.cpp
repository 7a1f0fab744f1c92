#include "tessera/shard/flat_layout.h"

#include <algorithm>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/shard/flat_planner.h"
#include "tessera/shard/round_up.h"

namespace tessera {
namespace {

constexpr int64_t kParameterBytes = 128;
constexpr int64_t kBufferBytes = 256;
constexpr int64_t kMasterBytes = 4;

// The smallest number of elements of `element_bytes` that fills whole `bytes`.
int64_t elements_of(int64_t bytes, int64_t element_bytes) {
  return bytes / std::gcd(bytes, element_bytes);
}

// ... in compute and in reduce dtype.
int64_t common_multiple(int64_t bytes, const LayoutOptions& options) {
  return std::lcm(elements_of(bytes, options.compute_bytes),
                  elements_of(bytes, options.reduce_bytes));
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
  FlatPlanner planner(options.world_size,
                      common_multiple(kParameterBytes, options));
  for (const auto& shape : shapes) planner.add(shape);
  planner.plan();

  FlatLayout layout;
  layout.world_size_ = options.world_size;
  const int64_t align = std::lcm(elements_of(kBufferBytes, kMasterBytes),
                                 common_multiple(kBufferBytes, options));
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
  layout.parameters_ = planner.parameters();
  for (FlatParameter& parameter : layout.parameters_) {
    if (parameter.numel == 0) continue;
    parameter.full_offset +=
        layout.buffers_[static_cast<size_t>(parameter.buffer)].full_offset;
  }
  return layout;
}

}  // namespace tessera
