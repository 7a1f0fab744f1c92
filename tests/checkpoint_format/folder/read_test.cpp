// Which bytes are read for a box, in which parts, and by how many threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>

#include "tessera/checkpoint/box_reads.h"
#include "tessera/checkpoint/crc32.h"
#include "tessera/checkpoint/parallel.h"
#include "tests/checkpoint_format/folder/hooked_storage.h"
#include "tests/checkpoint_format/folder/thread_peers.h"
#include "tests/support/temporary_folder.h"

namespace tessera::checkpoint {
namespace {

using testing::message_of;
using testing::TemporaryFolder;

constexpr int64_t kMiB = 1 << 20;
constexpr size_t kLarge = 64 << 10;  // reads above it are of tensors' data

std::byte byte_at(int64_t index) { return static_cast<std::byte>(index % 251); }

// Saves tensor "w" of bytes, [rows, width], in one piece.
void save_bytes(const std::string& path, int64_t rows, int64_t width) {
  const Box whole{{0, 0}, {rows, width}};
  const WriteSource source{
      .value = {}, .box = [](const std::string&, const Box& box) {
        auto keep = std::make_shared<std::vector<std::byte>>(box.numel());
        for (int64_t i = 0; i < box.numel(); ++i) (*keep)[i] = byte_at(i);
        return in_host_memory({*keep, keep});
      }};
  FolderSave save(
      path, {},
      [&] {
        return Offer{
            .tensors = {{"w", {"w"}, Dtype::uint8, {rows, width}, {whole}}}};
      },
      {});
  save.commit({}, [&] { return save.write(source); });
}

bool is_part(std::span<const std::byte> bytes, const Box& box, int64_t width) {
  size_t at = 0;
  for (int64_t row = 0; row < box.lengths[0]; ++row) {
    const int64_t begin = (box.offsets[0] + row) * width + box.offsets[1];
    for (int64_t column = 0; column < box.lengths[1]; ++column, ++at) {
      if (bytes[at] != byte_at(begin + column)) return false;
    }
  }
  return true;
}

// The disk, with a word in all reads of tensors' data.
class WatchedStorage final : public HookedStorage {
 public:
  using Forget = std::function<void(uint64_t offset, uint64_t count)>;

  explicit WatchedStorage(std::function<void(size_t)> on_read,
                          Forget on_forget = {})
      : HookedStorage([](int64_t, const std::string&) {}),
        on_read_(std::move(on_read)),
        on_forget_(std::move(on_forget)) {}

  std::unique_ptr<ReadableFile> open(const std::string& path) override {
    return std::make_unique<Watched>(HookedStorage::open(path), on_read_,
                                     on_forget_);
  }

 private:
  class Watched final : public ReadableFile {
   public:
    Watched(std::unique_ptr<ReadableFile> inner,
            std::function<void(size_t)> on_read, Forget on_forget)
        : inner_(std::move(inner)),
          on_read_(std::move(on_read)),
          on_forget_(std::move(on_forget)) {}
    const std::string& path() const override { return inner_->path(); }
    uint64_t size() const override { return inner_->size(); }
    void read(uint64_t offset, std::span<std::byte> into) const override {
      if (into.size() >= kLarge) on_read_(into.size());
      inner_->read(offset, into);
    }
    void forget(uint64_t offset, uint64_t count) const override {
      if (on_forget_) on_forget_(offset, count);
      inner_->forget(offset, count);
    }

   private:
    std::unique_ptr<ReadableFile> inner_;
    std::function<void(size_t)> on_read_;
    Forget on_forget_;
  };

  std::function<void(size_t)> on_read_;
  Forget on_forget_;
};

TEST(BoxReads, OfALargeTensorAreRangesThatThreadsReadAtOnce) {
  const TemporaryFolder folder;
  constexpr int64_t kWidth = 3 * kMiB;
  save_bytes(folder / "a", 7, kWidth);
  std::mutex mutex;
  std::condition_variable changed;
  int inside = 0;
  bool together = false;
  // The first read waits for another that begins before it has ended.
  const auto meet = [&](size_t) {
    std::unique_lock lock(mutex);
    together = ++inside == 2 || together;
    changed.notify_all();
    changed.wait_for(lock, std::chrono::seconds(10), [&] { return together; });
    --inside;
  };
  const CheckpointReader reader(folder / "a",
                                std::make_shared<WatchedStorage>(meet));
  const Box whole{{0, 0}, {7, kWidth}};
  std::vector<std::byte> bytes(whole.numel());
  BoxReads reads(reader, "w", whole);
  EXPECT_EQ(reads.num_parts(), 42U);  // six of each row
  int64_t numel = 0;
  for (size_t part = 0; part < reads.num_parts(); ++part) {
    EXPECT_LE(reads.box(part).numel(), static_cast<int64_t>(kMostPart));
    numel += reads.box(part).numel();
  }
  EXPECT_EQ(numel, whole.numel());
  parallel_for(reads.num_parts(), 2,
               [&](size_t part) { reads.read(part, whole, bytes); });
  EXPECT_TRUE(together);
  EXPECT_TRUE(is_part(bytes, whole, kWidth));
}

// Pages of them in memory would end the system's reading ahead at each item.
TEST(BoxReads, ForgetBothEndsOfALargeItemBeforeItsDataIsRead) {
  const TemporaryFolder folder;
  for (const int64_t width : {3 * kMiB, int64_t{1000}}) {
    const std::string path = folder / str(width);
    save_bytes(path, 1, width);
    std::vector<std::pair<uint64_t, uint64_t>> forgotten;
    const CheckpointReader reader(
        path, std::make_shared<WatchedStorage>(
                  [](size_t) {},
                  [&](uint64_t offset, uint64_t count) {
                    forgotten.emplace_back(offset, offset + count);
                  }));
    const Box whole{{0, 0}, {1, width}};
    const BoxReads reads(reader, "w", whole);
    const ItemPlace place = reader.metadata().tensors.at("w").boxes[0].place;
    const auto lies_in_one = [&](uint64_t offset) {
      return std::ranges::any_of(forgotten, [&](const auto& range) {
        return range.first <= offset && offset < range.second;
      });
    };
    const bool large = width > kMiB;
    EXPECT_EQ(lies_in_one(place.offset), large);
    EXPECT_EQ(lies_in_one(place.offset + place.num_bytes - 1), large);
  }
}

TEST(BoxReads, TakeOnlyTheBytesThatARankNeeds) {
  const TemporaryFolder folder;
  constexpr int64_t kRows = 12;
  constexpr int64_t kWidth = 2 * kMiB;
  save_bytes(folder / "a", kRows, kWidth);
  std::atomic<int64_t> num_bytes = 0;
  const auto count = [&](size_t read) {
    num_bytes += static_cast<int64_t>(read);
  };
  const CheckpointReader reader(folder / "a",
                                std::make_shared<WatchedStorage>(count));
  for (const int64_t ranks : {1, 2, 3, 4}) {
    for (const bool columns : {false, true}) {
      for (int64_t rank = 0; rank < ranks; ++rank) {
        Box box{{0, 0}, {kRows, kWidth}};
        const size_t dim = columns ? 1 : 0;
        box.lengths[dim] /= ranks;
        box.offsets[dim] = rank * box.lengths[dim];
        std::vector<std::byte> bytes(box.numel());
        num_bytes = 0;
        reader.read_box("w", box, bytes);
        EXPECT_EQ(num_bytes, box.numel());
        EXPECT_TRUE(is_part(bytes, box, kWidth));
      }
    }
  }
}

TEST(BoxReads, OfManyPartsAreComparedWithTheChecksumOfTheWhole) {
  const TemporaryFolder folder;
  constexpr int64_t kWidth = 5 * kMiB;
  save_bytes(folder / "a", 4, kWidth);
  const Box whole{{0, 0}, {4, kWidth}};
  const Box wider{{0, 0}, {4, kWidth + 7}};
  std::vector<std::byte> bytes(wider.numel());
  const auto read = [&](const Box& target) {
    const CheckpointReader reader(folder / "a");
    BoxReads reads(reader, "w", whole);
    parallel_for(reads.num_parts(), 3,
                 [&](size_t part) { reads.read(part, target, bytes); });
  };
  EXPECT_NO_THROW(read(whole));
  EXPECT_NO_THROW(read(wider));
  const StoredBox piece =
      CheckpointReader(folder / "a").metadata().tensors.at("w").boxes.at(0);
  std::string file = testing::read_bytes(folder / "a/" + piece.place.file);
  char& byte = file[piece.place.offset + piece.place.num_bytes / 2];
  byte = static_cast<char>(byte ^ 4);
  testing::write_bytes(folder / "a/" + piece.place.file, file);
  for (const Box& target : {whole, wider}) {
    const std::string error =
        message_of<CheckpointError>([&] { read(target); });
    EXPECT_NE(error.find("does not fit its checksum"), std::string::npos)
        << error;
  }
}

// A file in memory.
class MemoryFile final : public ReadableFile {
 public:
  explicit MemoryFile(std::vector<std::byte> bytes)
      : bytes_(std::move(bytes)) {}
  const std::string& path() const override { return path_; }
  uint64_t size() const override { return bytes_.size(); }
  void read(uint64_t offset, std::span<std::byte> into) const override {
    num_read_ += into.size();
    std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset),
                into.size(), into.begin());
  }
  [[nodiscard]] uint64_t num_read() const { return num_read_; }

 private:
  std::string path_ = "memory";
  std::vector<std::byte> bytes_;
  mutable uint64_t num_read_ = 0;
};

// PyTorch saves a transposed tensor as it lies in memory.
TEST(ItemReads, OfATransposedTensorTakeEachByteOnce) {
  constexpr int64_t kRows = 100'000;
  constexpr int64_t kColumns = 200;
  std::vector<std::byte> data(kRows * kColumns);
  for (size_t i = 0; i < data.size(); ++i) {
    data[i] = byte_at(static_cast<int64_t>(i));
  }
  const uint32_t crc = crc32(data);
  const MemoryFile file(std::move(data));
  const FileSlice slice(file, 0, file.size());
  const Box whole{{0, 0}, {kRows, kColumns}};
  ItemReads reads({.dtype = Dtype::uint8,
                   .sizes = whole.lengths,
                   .strides = {1, kRows},
                   .data_bytes = file.size(),
                   .data_crc = crc},
                  whole, whole);
  EXPECT_GT(reads.parts().size(), 1U);
  std::vector<std::byte> bytes(whole.numel());
  for (size_t part = 0; part < reads.parts().size(); ++part) {
    reads.read(slice, part, whole, bytes, "w");
  }
  EXPECT_EQ(file.num_read(), file.size());
  for (int64_t row = 0; row < kRows; row += 977) {
    for (int64_t column = 0; column < kColumns; ++column) {
      ASSERT_EQ(bytes[row * kColumns + column], byte_at(column * kRows + row));
    }
  }
}

}  // namespace
}  // namespace tessera::checkpoint
