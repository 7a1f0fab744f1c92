#include "tessera/shard/flat_layout.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "tessera/base/error.h"
#include "tests/layout/layout_checks.h"

namespace tessera {
namespace {

using namespace layout_test;

// All parameters start at 128 bytes in both dtypes.
bool all_aligned(const FlatLayout& layout, const LayoutOptions& options) {
  return std::ranges::all_of(layout.parameters(), [&](const auto& parameter) {
    return parameter.full_offset * options.compute_bytes % 128 == 0 &&
           parameter.full_offset * options.reduce_bytes % 128 == 0;
  });
}

TEST(FlatLayout, GivesAVectorTheRoomThatRowsLeaveOrABufferOfItsOwn) {
  const Shapes shapes = {{4, 3}, {3}};
  const FlatLayout layout = plan_flat_layout(shapes, {.world_size = 2});
  ASSERT_EQ(layout.buffers().size(), 2U);
  EXPECT_EQ(layout.buffers()[0].shard_numel, 6);

  const Shapes five = {{5, 3}, {3}};
  const FlatLayout packed = plan_flat_layout(five, {.world_size = 2});
  ASSERT_EQ(packed.buffers().size(), 1U);
  EXPECT_EQ(packed.parameters()[1].full_offset, 15);
  EXPECT_EQ(packed.padding(), 0);
}

TEST(FlatLayout, TilesEveryParameterForAllSmallShapesAndWorlds) {
  for (int64_t world_size = 1; world_size <= 5; ++world_size) {
    for (int64_t rows = 0; rows <= 9; ++rows) {
      for (int64_t row_numel = 0; row_numel <= 5; ++row_numel) {
        for (int64_t vector = 0; vector <= 9; ++vector) {
          const Shapes shapes = {{vector}, {rows, row_numel}, {3, 2}, {1}};
          const LayoutOptions options{.world_size = world_size,
                                      .compute_bytes = 2};
          SCOPED_TRACE(describe(shapes, options));
          ASSERT_NO_FATAL_FAILURE(check_layout(shapes, options));
        }
      }
    }
  }
}

TEST(FlatLayout, TilesEveryParameterForRandomShapesAndWorlds) {
  std::mt19937 random(1);
  const auto draw = [&random](int64_t below) {
    return static_cast<int64_t>(random() % static_cast<uint32_t>(below));
  };
  for (int round = 0; round < 4000; ++round) {
    Shapes shapes(static_cast<size_t>(draw(12)));
    for (Shape& shape : shapes) {
      shape.resize(static_cast<size_t>(1 + draw(4)));
      for (int64_t& size : shape) size = draw(8) == 0 ? draw(200) : draw(9);
    }
    const LayoutOptions options{.world_size = 1 + draw(round % 8 ? 9 : 1024),
                                .compute_bytes = int64_t{1} << draw(4),
                                .reduce_bytes = int64_t{1} << draw(4)};
    SCOPED_TRACE(describe(shapes, options));
    ASSERT_NO_FATAL_FAILURE(check_layout(shapes, options));
  }
}

TEST(FlatLayout, NeverCutsARowBetweenRanks) {
  const Shapes shapes = {{7, 5, 3}, {2, 15}, {11, 3}, {4}};
  for (int64_t world_size = 1; world_size <= 9; ++world_size) {
    const FlatLayout layout =
        plan_flat_layout(shapes, {.world_size = world_size});
    for (size_t i = 0; i < 3; ++i) {
      const FlatParameter& parameter = layout.parameters()[i];
      const auto& buffer = layout.buffers().at(parameter.buffer);
      const int64_t row_numel = row_numel_of(shapes[i]);
      for (int64_t row = 0; row < shapes[i][0]; ++row) {
        const int64_t first =
            parameter.full_offset - buffer.full_offset + row * row_numel;
        ASSERT_EQ(first / buffer.shard_numel,
                  (first + row_numel - 1) / buffer.shard_numel);
      }
    }
  }
}

TEST(FlatLayout, IsPaddedByNothingInAWorldOfOneWithOneRowLength) {
  const Shapes shapes = {{7, 3}, {5, 3}, {1, 3}};
  const LayoutOptions options{.world_size = 1};
  const FlatLayout layout = plan_flat_layout(shapes, options);
  EXPECT_EQ(layout.padding(), 0);
  EXPECT_EQ(layout.piece(1, 0).num_rows, 5);
}

TEST(FlatLayout, GivesNothingToRanksBeyondASmallParameter) {
  const Shapes shapes = {{2, 4}};
  const FlatLayout layout = plan_flat_layout(shapes, {.world_size = 4});
  EXPECT_EQ(layout.piece(0, 1).first_row, 1);
  EXPECT_EQ(layout.piece(0, 1).num_rows, 1);
  EXPECT_EQ(layout.piece(0, 2), LocalPiece{});
  EXPECT_EQ(layout.piece(0, 3), LocalPiece{});
}

TEST(FlatLayout, AcceptsNoParametersAndEmptyOnes) {
  const FlatLayout none = plan_flat_layout({}, {.world_size = 3});
  EXPECT_EQ(none.full_numel(), 0);
  EXPECT_TRUE(none.buffers().empty());
  const Shapes shapes = {{0}, {0, 4}, {4, 0}};
  const FlatLayout empty = plan_flat_layout(shapes, {.world_size = 3});
  EXPECT_TRUE(empty.buffers().empty());
  EXPECT_EQ(empty.padding(), 0);
  EXPECT_EQ(empty.piece(2, 1), LocalPiece{});
}

TEST(FlatLayout, PutsOneDimensionalParametersIntoTheEndOfALongRowBuffer) {
  const Shapes shapes = {{768}, {50257, 768}, {768}};
  const FlatLayout layout =
      plan_flat_layout(shapes, {.world_size = 8, .compute_bytes = 2});
  ASSERT_EQ(layout.buffers().size(), 1U);
  EXPECT_EQ(layout.buffers()[0].shard_numel, 6283 * 768);
  EXPECT_EQ(layout.parameters()[0].full_offset, 50257 * 768);
  EXPECT_EQ(layout.parameters()[2].full_offset, 50258 * 768);
}

TEST(FlatLayout, AlignsAllParametersWhoseRowsAllowIt) {
  const Shapes shapes = {{50257, 768}, {1024, 768}, {2304, 768},
                         {2304},       {768, 3072}, {768},
                         {3072},       {9, 64},     {5, 128}};
  for (int64_t world_size : {1, 2, 3, 7, 8, 64, 100}) {
    const LayoutOptions options{.world_size = world_size, .compute_bytes = 2};
    const FlatLayout layout = plan_flat_layout(shapes, options);
    EXPECT_TRUE(all_aligned(layout, options)) << world_size;
  }
}

TEST(FlatLayout, AlignsOddRowsWhereTheBoundLeavesRoom) {
  // Rows of 3 need gaps of up to 63 rows, which the long rows' share pays for.
  const Shapes shapes = {{5, 3}, {7, 3}, {13}, {5}, {10, 4096}};
  for (int64_t world_size : {1, 2, 3, 8}) {
    const LayoutOptions options{.world_size = world_size, .compute_bytes = 2};
    const FlatLayout layout = plan_flat_layout(shapes, options);
    EXPECT_TRUE(all_aligned(layout, options)) << world_size;
    for (const FlatBuffer& buffer : layout.buffers()) {
      EXPECT_EQ(buffer.shard_numel % 64, 0) << world_size;
    }
  }
}

TEST(FlatLayout, PutsSizesThatKeepAlignmentFirst) {
  // Rows of 8 are aligned every 4 rows of 4 bytes; only {3,8} breaks that.
  const Shapes shapes = {{3, 8}, {4, 8}, {8, 8}};
  const LayoutOptions options{.world_size = 1};
  const FlatLayout layout = plan_flat_layout(shapes, options);
  EXPECT_EQ(layout.parameters()[1].full_offset, 0);
  EXPECT_EQ(layout.parameters()[2].full_offset, 32);
  EXPECT_EQ(layout.parameters()[0].full_offset, 96);
}

TEST(FlatLayout, AlignsElementsOfUnequalBytesInBoth) {
  const Shapes shapes = {{3, 64}, {33}, {10, 1024}, {31}, {2, 5}};
  for (int64_t compute_bytes : {1, 2, 4, 8}) {
    for (int64_t reduce_bytes : {1, 2, 4, 8}) {
      const LayoutOptions options{.world_size = 4,
                                  .compute_bytes = compute_bytes,
                                  .reduce_bytes = reduce_bytes};
      const FlatLayout layout = plan_flat_layout(shapes, options);
      EXPECT_TRUE(all_aligned(layout, options))
          << compute_bytes << " and " << reduce_bytes;
    }
  }
}

TEST(FlatLayout, PrefersAnUnalignedGapToAnotherBuffer) {
  // The gap of one row of 64 holds both vectors, one at 128 bytes.
  const Shapes shapes = {{3, 64}, {32}, {32}};
  const FlatLayout layout =
      plan_flat_layout(shapes, {.world_size = 2, .compute_bytes = 2});
  ASSERT_EQ(layout.buffers().size(), 1U);
  EXPECT_EQ(layout.padding(), 0);
}

TEST(FlatLayout, RefusesWhatCannotBeSharded) {
  const Shapes scalar = {{2}, {}};
  EXPECT_THROW((void)plan_flat_layout(scalar, {}), InvalidArgument);
  const Shapes negative = {{2, -1}};
  EXPECT_THROW((void)plan_flat_layout(negative, {}), InvalidArgument);
  const Shapes fine = {{2}};
  EXPECT_THROW((void)plan_flat_layout(fine, {.world_size = 0}),
               InvalidArgument);
  EXPECT_THROW((void)plan_flat_layout(fine, {.compute_bytes = 0}),
               InvalidArgument);
  EXPECT_THROW((void)plan_flat_layout(fine, {.reduce_bytes = 0}),
               InvalidArgument);
}

TEST(FlatLayout, RefusesPiecesOfStrangers) {
  const Shapes shapes = {{2}};
  const FlatLayout layout = plan_flat_layout(shapes, {.world_size = 2});
  EXPECT_THROW((void)layout.piece(1, 0), InvalidArgument);
  EXPECT_THROW((void)layout.piece(0, 2), InvalidArgument);
  EXPECT_THROW((void)layout.piece(0, -1), InvalidArgument);
}

TEST(FlatLayout, SaysWhichParameterHasNoDims) {
  const Shapes shapes = {{2}, {}};
  try {
    (void)plan_flat_layout(shapes, {});
    FAIL() << "no error";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("parameter 1"), std::string::npos);
  }
}

TEST(FlatLayout, PlansFiveHundredParametersInAMillisecond) {
  Shapes shapes;
  for (int64_t i = 0; i < 250; ++i) {
    shapes.push_back({64 + i % 7, 16 * (1 + i % 50)});
    shapes.push_back({1 + i});
  }
  auto best = std::chrono::nanoseconds::max();
  for (int round = 0; round < 20; ++round) {
    const auto start = std::chrono::steady_clock::now();
    const FlatLayout layout = plan_flat_layout(shapes, {.world_size = 64});
    const auto stop = std::chrono::steady_clock::now();
    ASSERT_EQ(layout.parameters().size(), 500U);
    best = std::min(best, std::chrono::nanoseconds(stop - start));
  }
  RecordProperty("nanoseconds", std::to_string(best.count()));
  EXPECT_LT(best, std::chrono::milliseconds(1));
}

}  // namespace
}  // namespace tessera
