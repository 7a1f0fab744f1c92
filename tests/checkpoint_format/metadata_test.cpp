// `.metadata`: what is checked when it is read; and which boxes a box needs.
#include "tessera/checkpoint/metadata.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/region.h"
#include "tests/support/temporary_folder.h"

namespace tessera::checkpoint {
namespace {

using testing::message_of;

Metadata example() {
  Metadata metadata;
  metadata.tensors["w"] = {.dtype = Dtype::bfloat16,
                           .sizes = {5, 3},
                           .boxes = {{{{0, 0}, {3, 3}}, {"__0_0.distcp", 0, 9}},
                                     {{{3, 0}, {2, 3}}, {"__1_0.distcp", 7, 9}},
                                     {{{5, 0}, {0, 3}}, {}}}};
  metadata.tensors["step"] = {.dtype = Dtype::float32,
                              .sizes = {},
                              .boxes = {{{{}, {}}, {"__0_0.distcp", 9, 9}}}};
  metadata.values["epoch"] = {"__0_0.distcp", uint64_t{5} << 30, 9};
  metadata.paths = {{"w", {"w"}}, {"step", {"step"}}, {"epoch", {"epoch"}}};
  return metadata;
}

std::string error_of(const Metadata& metadata) {
  return message_of<CheckpointError>([&] {
    (void)parse_metadata(write_metadata(metadata, "id", "save"), "test");
  });
}

void expect_error(const Metadata& metadata, const std::string& part) {
  const std::string message = error_of(metadata);
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(Metadata, ReadsBackWhatWasWritten) {
  EXPECT_EQ(parse_metadata(write_metadata(example(), "id", "s"), "test"),
            example());
}

TEST(Metadata, ThatIsEmptyOrCutIsRefusedWithItsName) {
  const std::string whole = write_metadata(example(), "id", "save");
  for (size_t bytes = 0; bytes < whole.size(); bytes += 3) {
    const std::string message = message_of<CheckpointError>(
        [&] { (void)parse_metadata(whole.substr(0, bytes), "a/.metadata"); });
    EXPECT_NE(message.find("a/.metadata"), std::string::npos) << message;
  }
}

TEST(Metadata, LeadsToNoFileOutsideOfItsFolder) {
  for (const char* file : {"../x", "/etc/passwd", "a/b", ".", "..", "a\\b"}) {
    Metadata metadata = example();
    metadata.values["epoch"].file = file;
    expect_error(metadata, "plain name");
  }
}

TEST(Metadata, MayNotLieAboutBoxes) {
  Metadata outside = example();
  outside.tensors["w"].boxes[1].box.offsets[0] = 4;
  expect_error(outside, "lies outside");
  Metadata without_item = example();
  without_item.tensors["w"].boxes[1].place = {};
  expect_error(without_item, "without an item");
  Metadata too_large = example();
  too_large.tensors["w"].sizes = {INT64_MAX, INT64_MAX};
  expect_error(too_large, "too large");
  Metadata negative = example();
  negative.tensors["w"].boxes[0].box.lengths[0] = -3;
  expect_error(negative, "negative");
}

TEST(Overlaps, AreFoundForEveryPairOfRankCounts) {
  for (int64_t rows = 0; rows <= 9; ++rows) {
    for (int64_t writers = 1; writers <= 5; ++writers) {
      for (int64_t readers = 1; readers <= 5; ++readers) {
        const auto box_of = [&](int64_t rank, int64_t ranks) {
          const int64_t most = (rows + ranks - 1) / ranks;
          const int64_t begin = std::min(rank * most, rows);
          return Box{{begin, 0}, {std::min(most, rows - begin), 2}};
        };
        std::vector<StoredBox> stored;
        for (int64_t r = 0; r < writers; ++r) {
          stored.push_back({box_of(r, writers)});
        }
        for (int64_t r = 0; r < readers; ++r) {
          const Box wanted = box_of(r, readers);
          int64_t numel = 0;
          for (const auto& part : find_overlaps(stored, wanted, "w")) {
            numel += part.box.numel();
          }
          EXPECT_EQ(numel, wanted.numel());
        }
      }
    }
  }
}

TEST(Overlaps, RefuseHolesAndContradictions) {
  const Box all{{0, 0}, {4, 4}};
  const std::vector<StoredBox> hole = {{{{0, 0}, {4, 2}}}, {{{0, 2}, {3, 2}}}};
  EXPECT_NE(
      message_of<CheckpointError>([&] { (void)find_overlaps(hole, all, "w"); })
          .find("of the 16 elements at offset [0, 0] size [4, 4] it has "
                "14"),
      std::string::npos);
  const std::vector<StoredBox> twice = {{{{0, 0}, {3, 4}}}, {{{2, 0}, {2, 4}}}};
  EXPECT_NE(message_of<CheckpointError>([&] {
              (void)find_overlaps(twice, all, "w");
            }).find("overlap"),
            std::string::npos);
  // The same box twice is a copy.
  const std::vector<StoredBox> copies = {{all}, {all}};
  EXPECT_EQ(find_overlaps(copies, all, "w").size(), 1U);
}

}  // namespace
}  // namespace tessera::checkpoint
