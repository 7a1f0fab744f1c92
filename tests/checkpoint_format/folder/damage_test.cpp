// Checkpoints that were cut, flipped, swapped or robbed after they were saved.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tessera/checkpoint/folders.h"
#include "tessera/checkpoint/zip_writer.h"
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

TEST_F(Damage, APipeInPlaceOfAFileIsNoReasonToWait) {
  std::filesystem::remove(file("__1_0.distcp"));
  ASSERT_EQ(::mkfifo(file("__1_0.distcp").c_str(), 0600), 0);
  expect_found("it is not a regular file");
}

TEST_F(Damage, ChecksumsLeadToNoFileOutsideOfTheFolder) {
  write_bytes(folder_ / "other", "abc");
  write_bytes(file("tessera_checksums.json"),
              R"({"files": {"../other": {"bytes": 3, "crc32": "352441c2"}}})");
  expect_found("'../other' is not a plain name");
}

void swap_files(const std::string& one, const std::string& other) {
  const std::string bytes = read_bytes(one);
  write_bytes(one, read_bytes(other));
  write_bytes(other, bytes);
}

TEST_F(Damage, SwappedFilesOfOtherSizesAreFoundBeforeAnythingIsLoaded) {
  swap_files(file("__0_0.distcp"), file("__1_0.distcp"));
  const std::string error = testing::message_of<CheckpointError>(
      [&] { CheckpointReader reader(path_); });
  EXPECT_NE(error.find("or not the one that belongs here"), std::string::npos)
      << error;
}

// Each is whole in itself: only the checksums know which one it was.
TEST_F(Damage, AFileOfAnotherSaveIsFoundByVerify) {
  const std::string path = folder_ / "step-2";
  for (const int save : {0, 1}) {
    save_small(path + str("-", save), {}, {.rows = 4, .factor = save + 1});
  }
  const std::string name = path + "-0/__0_0.distcp";
  write_bytes(name, read_bytes(path + "-1/__0_0.distcp"));
  const CheckpointReader reader(path + "-0");
  const std::string error =
      testing::message_of<CheckpointError>([&] { (void)reader.verify(); });
  EXPECT_NE(error.find(str("'", name, "' does not fit its checksum")),
            std::string::npos)
      << error;
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

TEST_F(Damage, ALoadThatReadsAWholePieceFindsAFlippedBit) {
  const Box whole{{0, 0}, {5, 3}};
  std::vector<std::byte> got(15);
  const auto read = [&] {
    CheckpointReader(path_).read_box("model.w", whole, got);
  };
  read();
  const StoredBox piece =
      CheckpointReader(path_).metadata().tensors.at("model.w").boxes.at(1);
  std::string bytes = read_bytes(file(piece.place.file));
  const std::string data("\x1b\x1e\x21\x24\x27\x2a", 6);  // 3 * (9 ... 14)
  const size_t at = bytes.find(data, piece.place.offset);
  ASSERT_NE(at, std::string::npos);
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  write_bytes(file(piece.place.file), bytes);
  const std::string error = testing::message_of<CheckpointError>(read);
  EXPECT_NE(error.find("does not fit its checksum"), std::string::npos)
      << error;
  EXPECT_NE(error.find(piece.place.file), std::string::npos) << error;
}

// A program that makes a file, where Python would run it.
std::string hostile_pickle(const std::string& path) {
  const std::string call = "touch " + path;
  return std::string("\x80\x02") + "cposix\nsystem\nX" +
         static_cast<char>(call.size()) + std::string(3, '\0') + call +
         "\x85R.";
}

TEST_F(Damage, HostilePicklesInAFolderRunNothing) {
  const std::string trace = folder_ / "trace";
  const std::string value =
      CheckpointReader(path_).metadata().values.at("step").file;
  const std::string items = read_bytes(file(value));
  std::filesystem::remove(file("tessera_checksums.json"));
  write_bytes(file(".metadata"), hostile_pickle(trace));
  expect_found("posix system");
  EXPECT_EQ(latest(folder_.path()), std::nullopt);

  // As a value; `.metadata` says where it lies.
  const std::string item = value_item(hostile_pickle(trace));
  Metadata metadata;
  metadata.values["step"] = {value, items.size(), item.size()};
  write_bytes(file(value), items + item);
  write_bytes(file(".metadata"), write_metadata(metadata, "id", "save"));
  const CheckpointReader reader(path_);
  const std::string error = testing::message_of<CheckpointError>(
      [&] { (void)reader.read_value("step", OnUnknown::refuse); });
  EXPECT_NE(error.find("posix system"), std::string::npos) << error;
  EXPECT_TRUE(reader.read_value("step", OnUnknown::keep)
                  .get<Value::Opaque>());  // its bytes, to be copied through
  EXPECT_FALSE(std::filesystem::exists(trace));
}

// `.metadata` of somebody who checks nothing, without checksums beside it.
TEST_F(Damage, MetadataThatLiesIsFound) {
  const Metadata honest = CheckpointReader(path_).metadata();
  std::filesystem::remove(file("tessera_checksums.json"));
  const auto expect_lie = [&](const char* part, const auto& lie) {
    Metadata metadata = honest;
    lie(metadata.tensors.at("model.w"));
    write_bytes(file(".metadata"), write_metadata(metadata, "id", "save"));
    SCOPED_TRACE(part);
    expect_found(part);
  };
  constexpr uint64_t kHuge = uint64_t{1} << 60;
  expect_lie("the file is cut",
             [](StoredTensor& w) { w.boxes[0].place.num_bytes = kHuge; });
  expect_lie("the file is cut",
             [](StoredTensor& w) { w.boxes[0].place.offset = kHuge; });
  expect_lie("has another shape", [](StoredTensor& w) {
    w.boxes[0].box.lengths = {2, 3};
    w.boxes[1].box = {{2, 0}, {3, 3}};
  });
  expect_lie("float32", [](StoredTensor& w) { w.dtype = Dtype::float32; });
  expect_lie("not stored completely",
             [](StoredTensor& w) { w.boxes.pop_back(); });
  expect_lie("boxes that overlap",
             [](StoredTensor& w) { w.boxes[1].box.offsets[0] = 2; });
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
