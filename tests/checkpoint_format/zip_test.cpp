// Items as zip files: ours are read, and damaged ones are refused.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/checkpoint/crc32.h"
#include "tessera/checkpoint/item.h"
#include "tessera/checkpoint/zip_writer.h"
#include "tests/support/temporary_folder.h"

namespace tessera::checkpoint {
namespace {

using testing::message_of;

// A file in memory; beyond its bytes, zeros up to `size`.
class MemoryFile final : public ReadableFile {
 public:
  explicit MemoryFile(std::string bytes) : bytes_(std::move(bytes)) {}

  [[nodiscard]] const std::string& path() const override { return path_; }
  [[nodiscard]] uint64_t size() const override { return bytes_.size(); }
  void read(uint64_t offset, std::span<std::byte> into) const override {
    require<CheckpointError>(offset + into.size() <= bytes_.size(),
                             [] { return str("read beyond the file"); });
    std::memcpy(into.data(), bytes_.data() + offset, into.size());
  }

 private:
  std::string path_ = "memory";
  std::string bytes_;
};

uint32_t crc_of(std::string_view text) {
  return crc32(std::as_bytes(std::span(text)));
}

std::string tensor_item(Dtype dtype, const std::vector<int64_t>& sizes,
                        const std::string& data) {
  const ItemLayout layout(tensor_pickle(dtype, sizes), data.size());
  std::string item = layout.prefix() + data + layout.suffix(crc_of(data));
  EXPECT_EQ(item.size(), layout.num_bytes());
  return item;
}

// Bit by bit, as the polynomial says.
uint32_t slow_crc32(std::span<const std::byte> bytes, uint32_t before) {
  uint32_t crc = ~before;
  for (const std::byte byte : bytes) {
    crc ^= static_cast<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) {
      crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
    }
  }
  return ~crc;
}

TEST(Crc32, IsThatOfItsPolynomialAtEveryLengthAndPlace) {
  std::vector<std::byte> bytes(400);
  uint32_t number = 1;
  for (std::byte& byte : bytes) {
    number = number * 1664525 + 1013904223;
    byte = static_cast<std::byte>(number >> 24);
  }
  for (size_t length = 0; length <= 300; ++length) {
    const auto part = std::span(bytes).subspan(length % 17, length);
    EXPECT_EQ(crc32(part, number), slow_crc32(part, number)) << length;
  }
}

TEST(Crc32, IsThatOfZipFilesAndCombines) {
  EXPECT_EQ(crc_of("123456789"), 0xcbf43926U);
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i * 7);
  for (const size_t cut : {0, 1, 15, 16, 17, 500, 1000}) {
    const std::string_view first = std::string_view(text).substr(0, cut);
    const std::string_view second = std::string_view(text).substr(cut);
    EXPECT_EQ(crc32(std::as_bytes(std::span(second)), crc_of(first)),
              crc_of(text));
    EXPECT_EQ(crc32_combine(crc_of(first), crc_of(second), second.size()),
              crc_of(text));
  }
}

TEST(Item, OfATensorIsReadBackWithItsDataAligned) {
  for (const DtypeRow& row : kDtypes) {
    SCOPED_TRACE(row.name);
    const std::string data(6 * row.num_bytes, 'x');
    const MemoryFile file("junk" + tensor_item(row.dtype, {2, 3}, data));
    const FileSlice slice(file, 4, file.size() - 4);
    const ItemTensor tensor = read_tensor_item(slice);
    EXPECT_EQ(tensor.dtype, row.dtype);
    EXPECT_EQ(tensor.sizes, (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(tensor.strides, (std::vector<int64_t>{3, 1}));
    EXPECT_EQ(tensor.data_begin % 4096, 0U);
    EXPECT_EQ(slice.read(tensor.data_begin, tensor.data_bytes), data);
    EXPECT_EQ(tensor.data_crc, crc_of(data));
  }
}

TEST(Item, OfNoElementAndOfOneAreReadBack) {
  const MemoryFile empty(tensor_item(Dtype::float32, {3, 0}, ""));
  EXPECT_EQ(read_tensor_item({empty, 0, empty.size()}).data_bytes, 0U);
  const MemoryFile scalar(tensor_item(Dtype::float32, {}, "abcd"));
  EXPECT_EQ(read_tensor_item({scalar, 0, scalar.size()}).sizes.size(), 0U);
}

TEST(Item, OfAValueIsReadBack) {
  const Value value = Value::tuple({0.9, "a", 3});
  const MemoryFile file(write_value_item(value));
  EXPECT_EQ(read_value_item({file, 0, file.size()}, OnUnknown::refuse), value);
}

TEST(Item, BeyondFourGibHasZip64Fields) {
  const uint64_t bytes = (uint64_t{1} << 32) + 100;
  const ItemLayout layout(
      tensor_pickle(Dtype::uint8, {static_cast<int64_t>(bytes)}), bytes);
  const testing::TemporaryFolder folder;
  const std::string path = folder / "large";
  {
    const auto file = local_storage()->create(path);  // sparse: data is a hole
    const auto put = [&](uint64_t at, const std::string& text) {
      file->write(at, std::as_bytes(std::span(text)));
    };
    put(0, layout.prefix());
    put(layout.data_begin() + bytes, layout.suffix(1234));
  }
  const auto file = local_storage()->open(path);
  ASSERT_EQ(file->size(), layout.num_bytes());
  const ItemTensor tensor = read_tensor_item({*file, 0, file->size()});
  EXPECT_EQ(tensor.data_bytes, bytes);
  EXPECT_EQ(tensor.data_crc, 1234U);
}

TEST(Item, CutAnywhereIsRefused) {
  const std::string item = tensor_item(Dtype::int16, {5}, "0123456789");
  for (size_t bytes = 0; bytes < item.size(); bytes += 7) {
    const MemoryFile file(item.substr(0, bytes));
    EXPECT_THROW((void)read_tensor_item({file, 0, file.size()}),
                 CheckpointError)
        << bytes;
  }
}

// No bit that is flipped outside of the data may change what is read, or lead
// to anything but a named error.
TEST(Item, WithABitFlippedReadsTheSameOrIsRefused) {
  const std::string data = "0123456789";
  const std::string item = tensor_item(Dtype::int16, {5}, data);
  size_t refused = 0;
  for (size_t bit = 0; bit < 8 * item.size(); ++bit) {
    std::string damaged = item;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ 1 << bit % 8);
    const MemoryFile file(damaged);
    const FileSlice slice(file, 0, file.size());
    try {
      const ItemTensor tensor = read_tensor_item(slice);
      EXPECT_EQ(tensor.sizes, std::vector<int64_t>{5});
      const std::string read = slice.read(tensor.data_begin, tensor.data_bytes);
      EXPECT_EQ(read == data, crc_of(read) == tensor.data_crc ||
                                  tensor.data_crc != crc_of(data))
          << bit;
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000U);
}

TEST(Item, WithOverlappingRecordsIsRefused) {
  std::string item = tensor_item(Dtype::int16, {5}, "0123456789");
  // The directory entry of the second record points to the first's header.
  const size_t entry = item.find("PK\x01\x02", item.find("PK\x01\x02") + 1);
  std::memset(item.data() + entry + 42, 0, 4);
  const MemoryFile file(item);
  const std::string message = message_of<CheckpointError>([&] {
    (void)read_tensor_item({file, 0, file.size()});
  });
  EXPECT_NE(message.find("overlaps"), std::string::npos) << message;
}

TEST(Item, BeyondItsFileIsRefused) {
  const MemoryFile file("abc");
  EXPECT_THROW(FileSlice(file, 2, 2), CheckpointError);
  EXPECT_THROW(FileSlice(file, UINT64_MAX, 2), CheckpointError);
}

}  // namespace
}  // namespace tessera::checkpoint
