// What must hold for every layout, whatever the shapes and the world size.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tessera/shard/flat_layout.h"

namespace tessera::layout_test {

using Shape = std::vector<int64_t>;
using Shapes = std::vector<Shape>;

inline int64_t numel_of(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1},
                         std::multiplies<>());
}

inline int64_t row_numel_of(const Shape& shape) {
  return std::accumulate(shape.begin() + 1, shape.end(), int64_t{1},
                         std::multiplies<>());
}

inline int64_t total_numel(const Shapes& shapes) {
  int64_t total = 0;
  for (const Shape& shape : shapes) total += numel_of(shape);
  return total;
}

/// world_size times the sum of the distinct row lengths.
inline int64_t padding_bound(const Shapes& shapes, int64_t world_size) {
  std::set<int64_t> rows;
  for (const Shape& shape : shapes) {
    if (numel_of(shape) > 0) rows.insert(row_numel_of(shape));
  }
  return world_size * std::accumulate(rows.begin(), rows.end(), int64_t{0});
}

inline std::string describe(const Shapes& shapes,
                            const LayoutOptions& options) {
  std::string text = "world_size " + std::to_string(options.world_size) +
                     ", bytes " + std::to_string(options.compute_bytes) + "/" +
                     std::to_string(options.reduce_bytes) + ", shapes";
  for (const Shape& shape : shapes) {
    text += " {";
    for (int64_t size : shape) text += std::to_string(size) + " ";
    text += "}";
  }
  return text;
}

/// Buffers follow each other without overlap, each at 256 bytes.
inline void check_buffers(const FlatLayout& layout,
                          const LayoutOptions& options) {
  int64_t full_end = 0;
  int64_t shard_end = 0;
  for (const FlatBuffer& buffer : layout.buffers()) {
    ASSERT_GT(buffer.shard_numel, 0);
    ASSERT_EQ(buffer.shard_numel % buffer.row_numel, 0);
    ASSERT_GE(buffer.full_offset, full_end);
    ASSERT_GE(buffer.shard_offset, shard_end);
    for (int64_t bytes : {options.compute_bytes, options.reduce_bytes}) {
      ASSERT_EQ(buffer.full_offset * bytes % 256, 0);
      ASSERT_EQ(buffer.shard_offset * bytes % 256, 0);
    }
    ASSERT_EQ(buffer.shard_offset * 4 % 256, 0);
    full_end = buffer.full_offset + layout.world_size() * buffer.shard_numel;
    shard_end = buffer.shard_offset + buffer.shard_numel;
  }
  ASSERT_EQ(layout.full_numel(), full_end);
  ASSERT_EQ(layout.shard_numel(), shard_end);
}

/// Every parameter lies in its buffer, and no two share an element.
inline void check_parameters(const FlatLayout& layout, const Shapes& shapes) {
  ASSERT_EQ(layout.parameters().size(), shapes.size());
  std::vector<std::pair<int64_t, int64_t>> spans;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const FlatParameter& parameter = layout.parameters()[i];
    ASSERT_EQ(parameter.numel, numel_of(shapes[i]));
    if (parameter.numel == 0) {
      ASSERT_EQ(parameter.row_numel, 0);
      continue;
    }
    ASSERT_EQ(parameter.row_numel, row_numel_of(shapes[i]));
    const auto& buffer = layout.buffers().at(parameter.buffer);
    const int64_t end = parameter.full_offset + parameter.numel;
    ASSERT_GE(parameter.full_offset, buffer.full_offset);
    ASSERT_LE(end,
              buffer.full_offset + layout.world_size() * buffer.shard_numel);
    spans.emplace_back(parameter.full_offset, end);
  }
  std::ranges::sort(spans);
  for (size_t i = 1; i < spans.size(); ++i) {
    ASSERT_LE(spans[i - 1].second, spans[i].first);
  }
}

/// The pieces of all ranks, in order, are the parameter; each lies in the
/// owner's slot of the buffer, at the same place in the full storage and in the
/// owner's master.
inline void check_pieces(const FlatLayout& layout, size_t index) {
  const FlatParameter& parameter = layout.parameters()[index];
  int64_t next_row = 0;
  for (int64_t rank = 0; rank < layout.world_size(); ++rank) {
    const LocalPiece piece = layout.piece(index, rank);
    if (piece.numel == 0) {
      ASSERT_EQ(piece, LocalPiece{});
      continue;
    }
    const auto& buffer = layout.buffers().at(parameter.buffer);
    ASSERT_EQ(piece.first_row, next_row);
    ASSERT_EQ(piece.numel, piece.num_rows * parameter.row_numel);
    ASSERT_EQ(piece.full_offset,
              parameter.full_offset + next_row * parameter.row_numel);
    const int64_t slot = buffer.full_offset + rank * buffer.shard_numel;
    const int64_t in_slot = piece.full_offset - slot;
    ASSERT_GE(in_slot, 0);
    ASSERT_LE(in_slot + piece.numel, buffer.shard_numel);
    ASSERT_EQ(piece.shard_offset, buffer.shard_offset + in_slot);
    next_row += piece.num_rows;
  }
  ASSERT_EQ(next_row * parameter.row_numel, parameter.numel);
}

inline void check_padding(const FlatLayout& layout, const Shapes& shapes) {
  int64_t carried = 0;
  for (const FlatBuffer& buffer : layout.buffers()) {
    carried += layout.world_size() * buffer.shard_numel;
  }
  ASSERT_EQ(layout.padding(), carried - total_numel(shapes));
  ASSERT_GE(layout.padding(), 0);
  if (total_numel(shapes) > 0) {
    ASSERT_LT(layout.padding(), padding_bound(shapes, layout.world_size()));
  }
}

/// In each buffer, parameters of two and more dims lie before the 1-D ones.
inline void check_dims_together(const FlatLayout& layout,
                                const Shapes& shapes) {
  std::vector<int64_t> matrices_end(layout.buffers().size(), 0);
  for (size_t i = 0; i < shapes.size(); ++i) {
    const FlatParameter& parameter = layout.parameters()[i];
    if (parameter.numel == 0 || shapes[i].size() == 1) continue;
    auto& end = matrices_end.at(parameter.buffer);
    end = std::max(end, parameter.full_offset + parameter.numel);
  }
  for (size_t i = 0; i < shapes.size(); ++i) {
    const FlatParameter& parameter = layout.parameters()[i];
    if (parameter.numel == 0 || shapes[i].size() > 1) continue;
    ASSERT_GE(parameter.full_offset, matrices_end.at(parameter.buffer));
  }
}

enum class Pieces { check, leave_out };

inline void check_layout(const Shapes& shapes, const LayoutOptions& options,
                         Pieces pieces = Pieces::check) {
  const FlatLayout layout = plan_flat_layout(shapes, options);
  ASSERT_EQ(layout.world_size(), options.world_size);
  ASSERT_NO_FATAL_FAILURE(check_buffers(layout, options));
  ASSERT_NO_FATAL_FAILURE(check_parameters(layout, shapes));
  ASSERT_NO_FATAL_FAILURE(check_padding(layout, shapes));
  ASSERT_NO_FATAL_FAILURE(check_dims_together(layout, shapes));
  if (pieces == Pieces::leave_out) return;
  for (size_t i = 0; i < shapes.size(); ++i) {
    ASSERT_NO_FATAL_FAILURE(check_pieces(layout, i));
  }
}

}  // namespace tessera::layout_test
