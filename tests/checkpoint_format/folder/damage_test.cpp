// Checkpoints that were cut, flipped, swapped or robbed after they were saved.
#include <gtest/gtest.h>

#include "tests/checkpoint_format/folder/thread_peers.h"
#include "tests/support/temporary_folder.h"

namespace tessera::checkpoint {
namespace {

using testing::read_bytes;
using testing::TemporaryFolder;
using testing::write_bytes;

class Damage : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto errors = run_peers(
        2, [&](const Peers& peers) { save_small(path_, peers, state_); });
    ASSERT_EQ(errors, std::vector<std::string>(2));
    ASSERT_EQ(compare_small(path_, state_), "");
  }

  std::string file(const std::string& name) const { return path_ + "/" + name; }

  void expect_found(const std::string& part) const {
    const std::string error = compare_small(path_, state_);
    EXPECT_NE(error.find(part), std::string::npos) << error;
  }

  const SmallState state_{.rows = 5, .factor = 3};
  const TemporaryFolder folder_;
  const std::string path_ = folder_ / "step-1";
};

TEST_F(Damage, AMissingFileIsNamed) {
  std::filesystem::remove(file("__1_0.distcp"));
  expect_found("__1_0.distcp");
}

TEST_F(Damage, ACutFileIsNamedBeforeAnythingIsLoaded) {
  const std::string bytes = read_bytes(file("__1_0.distcp"));
  for (const size_t kept : {size_t{0}, size_t{30}, bytes.size() - 1}) {
    write_bytes(file("__1_0.distcp"), bytes.substr(0, kept));
    EXPECT_THROW(CheckpointReader reader(path_), CheckpointError);
    expect_found("the file is cut");
  }
}

TEST_F(Damage, SwappedFilesAreFound) {
  const std::string first = read_bytes(file("__0_0.distcp"));
  write_bytes(file("__0_0.distcp"), read_bytes(file("__1_0.distcp")));
  write_bytes(file("__1_0.distcp"), first);
  EXPECT_NE(compare_small(path_, state_), "");
}

TEST_F(Damage, MetadataOfAnotherSaveIsFound) {
  const std::string other = folder_ / "step-2";
  save_small(other, {}, state_);
  write_bytes(file(".metadata"), read_bytes(other + "/.metadata"));
  expect_found("belongs to another checkpoint");
}

TEST_F(Damage, FlippedBitsOfMetadataAreFound) {
  const std::string bytes = read_bytes(file(".metadata"));
  for (size_t bit = 0; bit < 8 * bytes.size(); bit += 43) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ 1 << bit % 8);
    write_bytes(file(".metadata"), flipped);
    EXPECT_NE(compare_small(path_, state_), "") << bit;
  }
}

TEST_F(Damage, FlippedBitsOfDataAreFound) {
  const std::string bytes = read_bytes(file("__0_0.distcp"));
  for (size_t bit = 0; bit < 8 * bytes.size(); bit += 499) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ 1 << bit % 8);
    write_bytes(file("__0_0.distcp"), flipped);
    EXPECT_NE(compare_small(path_, state_), "") << bit;
  }
}

TEST_F(Damage, AFolderWithoutMetadataSaysWhatItIs) {
  const auto error_of = [&] {
    return testing::message_of<CheckpointError>(
        [&] { CheckpointReader reader(path_); });
  };
  std::filesystem::rename(file(".metadata"), file("__0.metadata"));
  EXPECT_NE(error_of().find("by each rank for itself"), std::string::npos);
  std::filesystem::remove(file("__0.metadata"));
  EXPECT_NE(error_of().find("its save did not end"), std::string::npos);
  std::filesystem::remove_all(path_);
  EXPECT_NE(error_of().find("no such folder"), std::string::npos);
}

}  // namespace
}  // namespace tessera::checkpoint
