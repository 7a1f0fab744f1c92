// A folder in whose place a save puts another one while it is opened.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tessera/checkpoint/reader.h"
#include "tessera/checkpoint/save_folder.h"
#include "tests/checkpoint_format/folder/opened_storage.h"
#include "tests/checkpoint_format/folder/thread_peers.h"
#include "tests/support/temporary_folder.h"

namespace tessera::checkpoint {
namespace {

using testing::message_of;
using testing::TemporaryFolder;

constexpr int64_t kNumel = 100;

// Tensor "w": as many bytes of one value.
void save_bytes(const std::string& path, uint8_t value) {
  const Box whole{{0}, {kNumel}};
  const WriteSource source{
      .value = {}, .box = [&](const std::string&, const Box&) {
        const auto keep =
            std::make_shared<std::vector<std::byte>>(kNumel, std::byte{value});
        return in_host_memory({*keep, keep});
      }};
  FolderSave save(
      path, {},
      [&] {
        return Offer{
            .tensors = {{"w", {"w"}, Dtype::uint8, {kNumel}, {whole}}}};
      },
      {});
  save.commit({}, [&] { return save.write(source); });
}

/// The value of all bytes, or -1 where they differ.
int value_in(const CheckpointReader& reader) {
  std::vector<std::byte> bytes(kNumel);
  reader.read_box("w", {{0}, {kNumel}}, bytes);
  const bool alike = std::ranges::count(bytes, bytes[0]) == kNumel;
  return alike ? static_cast<int>(bytes[0]) : -1;
}

TEST(ReplacedFolder, IsReadAsOneOfTheTwoWhicheverFileIsOpenedWhenItChanges) {
  for (const char* file :
       {".metadata", "tessera_checksums.json", "__0_0.distcp"}) {
    for (const bool before : {true, false}) {
      const TemporaryFolder folder;
      save_bytes(folder / "a", 1);
      save_bytes(folder / "b", 2);
      int num_opened = 0;
      const auto replace = [&](const std::string& name) {
        if (name != file || ++num_opened > 1) return;
        local_storage()->exchange_folders(folder / "b", folder / "a");
      };
      const CheckpointReader reader(
          folder / "a",
          std::make_shared<OpenedStorage>(
              before ? replace : OpenedStorage::Hook(),
              before ? OpenedStorage::Hook() : OpenedStorage::Hook(replace)));
      EXPECT_GE(num_opened, 1) << file;
      EXPECT_EQ(value_in(reader), 2) << file << (before ? " before" : " after");
      EXPECT_GT(reader.verify(), 0U) << file;
    }
  }
}

// What is open stays what it was.
TEST(ReplacedFolder, ChangesNothingForAReader) {
  const TemporaryFolder folder;
  save_bytes(folder / "a", 1);
  save_bytes(folder / "b", 2);
  const CheckpointReader reader(folder / "a");
  local_storage()->exchange_folders(folder / "b", folder / "a");
  local_storage()->remove_all(folder / "b");
  EXPECT_EQ(value_in(reader), 1);
  EXPECT_GT(reader.verify(), 0U);
  const CheckpointReader later(folder / "a");
  EXPECT_EQ(value_in(later), 2);
  EXPECT_NE(later.fingerprint(), reader.fingerprint());
  EXPECT_EQ(later.fingerprint(), CheckpointReader(folder / "a").fingerprint());
}

TEST(ReplacedFolder, TimeAndAgainIsAnErrorThatSaysSo) {
  const TemporaryFolder folder;
  save_bytes(folder / "a", 1);
  save_bytes(folder / "b", 2);
  const auto storage = std::make_shared<OpenedStorage>(
      [&](const std::string& name) {
        if (name != "tessera_checksums.json") return;
        local_storage()->exchange_folders(folder / "b", folder / "a");
      },
      OpenedStorage::Hook());
  const std::string message = message_of<CheckpointError>(
      [&] { const CheckpointReader reader(folder / "a", storage); });
  EXPECT_NE(message.find("was replaced by another checkpoint 8 times"),
            std::string::npos)
      << message;
}

}  // namespace
}  // namespace tessera::checkpoint
