// Checkpoints that torch 2.11 wrote, read to the last bit. What each holds is
// in expected.json.
#include <gtest/gtest.h>

#include <bit>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/checkpoint/reader.h"
#include "tessera/checkpoint/region.h"
#include "tests/support/temporary_folder.h"

namespace tessera::checkpoint {
namespace {

using nlohmann::json;
using testing::message_of;

const json& expected() {
  static const json all =
      json::parse(std::ifstream(DCP_FIXTURES "/expected.json"));
  return all;
}

std::string hex(std::span<const std::byte> bytes) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const std::byte byte : bytes) {
    out += kDigits[std::to_integer<size_t>(byte) >> 4];
    out += kDigits[std::to_integer<size_t>(byte) & 15];
  }
  return out;
}

std::string hex(const std::string& text) {
  return hex(std::as_bytes(std::span(text)));
}

Metadata metadata_of(const std::string& name,
                     const std::string& file = ".metadata") {
  const std::string path = str(DCP_FIXTURES "/", name, "/", file);
  return parse_metadata(testing::read_bytes(path), path);
}

std::unique_ptr<ReadableFile> open(const std::string& name,
                                   const ItemPlace& place) {
  return local_storage()->open(str(DCP_FIXTURES "/", name, "/", place.file));
}

// All of `wanted`, row-major.
std::vector<std::byte> read_box(const std::string& name, const std::string& key,
                                const StoredTensor& tensor, const Box& wanted) {
  const Box box = wanted;
  std::vector<std::byte> bytes(*num_bytes_of(tensor.dtype, box.lengths));
  for (const Overlap& overlap : find_overlaps(tensor.boxes, box, key)) {
    const StoredBox& stored = tensor.boxes[overlap.stored];
    require<CheckpointError>(stored.place.transforms.empty(),
                             [] { return str("transformed"); });
    const auto file = open(name, stored.place);
    const FileSlice slice(*file, stored.place.offset, stored.place.num_bytes);
    const ItemTensor item = read_tensor_item(slice);
    require<CheckpointError>(item.sizes == stored.box.lengths,
                             [] { return str("item shape"); });
    EXPECT_EQ(item.dtype, tensor.dtype);
    const RegionCopy copy(item, stored.box, box, overlap.box);
    copy.run(
        [&](uint64_t position, std::span<std::byte> into) {
          slice.read(item.data_begin + position, into);
        },
        bytes);
  }
  return bytes;
}

json encode(const Value& value);

json encode_all(const Value::Items& items) {
  json list = json::array();
  for (const Value& item : items) list.push_back(encode(item));
  return list;
}

// -(2^300) and its like, in decimal.
std::string decimal(std::string bytes) {
  const bool negative = (bytes.back() & 0x80) != 0;
  std::string digits = "0";
  for (size_t i = bytes.size(); i-- > 0;) {
    auto byte = static_cast<uint8_t>(bytes[i]);
    int carry = negative ? static_cast<uint8_t>(~byte) : byte;
    for (char& digit : digits) {
      const int value = (digit - '0') * 256 + carry;
      digit = static_cast<char>('0' + value % 10);
      carry = value / 10;
    }
    for (; carry > 0; carry /= 10) {
      digits += static_cast<char>('0' + carry % 10);
    }
  }
  if (negative) {  // ~x = -x - 1
    size_t i = 0;
    for (; i < digits.size() && digits[i] == '9'; ++i) digits[i] = '0';
    if (i == digits.size()) digits += '0';
    ++digits[i];
  }
  return (negative ? "-" : "") + std::string(digits.rbegin(), digits.rend());
}

json encode(const Value& value) {
  if (value.is_none()) return nullptr;
  if (const auto* v = value.get<bool>()) return *v;
  if (const auto* v = value.get<int64_t>()) return {{"int", str(*v)}};
  if (const auto* v = value.get<Value::BigInteger>()) {
    return {{"int", decimal(v->bytes)}};
  }
  if (const auto* v = value.get<double>()) {
    auto bits = std::bit_cast<uint64_t>(*v);
    std::string big_endian;
    for (int byte = 7; byte >= 0; --byte) {
      big_endian += static_cast<char>(bits >> (8 * byte));
    }
    return {{"float", hex(big_endian)}};
  }
  if (const auto* v = value.get<std::string>()) return {{"str", *v}};
  if (const auto* v = value.get<Value::Bytes>())
    return {{"bytes", hex(v->bytes)}};
  if (const auto* v = value.get<Value::Tuple>()) {
    return {{"tuple", encode_all(v->items)}};
  }
  if (const auto* v = value.get<Value::List>()) {
    return {{"list", encode_all(v->items)}};
  }
  json pairs = json::array();
  for (const auto& [key, item] : value.pairs()) {
    pairs.push_back({encode(key), encode(item)});
  }
  return {{"dict", pairs}};
}

Value value_of_key(const std::string& name, const ItemPlace& place) {
  const auto file = open(name, place);
  return read_value_item({*file, place.offset, place.num_bytes},
                         OnUnknown::refuse);
}

void expect_tensor(const std::string& name, const std::string& key,
                   const StoredTensor& tensor, const json& entry) {
  EXPECT_EQ(row_of(tensor.dtype).name, entry["dtype"].get<std::string>());
  EXPECT_EQ(tensor.sizes, entry["shape"].get<std::vector<int64_t>>());
  json chunks = json::array();
  for (const StoredBox& stored : tensor.boxes) {
    chunks.push_back({stored.box.offsets, stored.box.lengths});
  }
  EXPECT_EQ(chunks, entry["chunks"]);
  if (!entry.contains("data")) return;
  const std::string data = entry["data"];
  EXPECT_EQ(hex(read_box(name, key, tensor, whole_box(tensor.sizes))), data);
  // The same, row by row and column by column.
  for (size_t dim = 0; dim < tensor.sizes.size(); ++dim) {
    for (int64_t at = 0; at < tensor.sizes[dim]; ++at) {
      Box row = whole_box(tensor.sizes);
      row.offsets[dim] = at;
      row.lengths[dim] = 1;
      const auto bytes = read_box(name, key, tensor, row);
      if (dim == 0) {
        EXPECT_EQ(hex(bytes),
                  data.substr(2 * at * bytes.size(), 2 * bytes.size()));
      }
    }
  }
}

void expect_keys(const std::string& name, const Metadata& metadata,
                 const json& keys) {
  EXPECT_EQ(metadata.tensors.size() + metadata.values.size(), keys.size());
  for (const auto& [key, entry] : keys.items()) {
    SCOPED_TRACE(key);
    if (entry.contains("path")) {
      json path = json::array();
      for (const PathStep& step : metadata.paths.at(key)) {
        std::visit([&](const auto& s) { path.push_back(s); }, step);
      }
      EXPECT_EQ(path, entry["path"]);
      EXPECT_EQ(key_of(metadata.paths.at(key)), key);
    }
    if (entry.contains("dtype")) {
      expect_tensor(name, key, metadata.tensors.at(key), entry);
    } else {
      EXPECT_EQ(encode(value_of_key(name, metadata.values.at(key))),
                entry["value"]);
    }
  }
}

class DcpFixture : public ::testing::TestWithParam<const char*> {};

TEST_P(DcpFixture, IsReadToTheLastBit) {
  const std::string name = GetParam();
  expect_keys(name, metadata_of(name), expected().at(name).at("keys"));
}

TEST_P(DcpFixture, HasMetadataThatReadsTheSameWhenWrittenAgain) {
  const Metadata metadata = metadata_of(GetParam());
  const std::string bytes = write_metadata(metadata, "id", "save");
  EXPECT_EQ(parse_metadata(bytes, "again"), metadata);
}

INSTANTIATE_TEST_SUITE_P(
    All, DcpFixture,
    ::testing::Values(
        "plain_all_dtypes", "plain_file_per_item", "plain_four_threads",
        "ddp_w2", "fsdp2_w2_uneven", "fsdp2_w4_empty_shards", "hsdp_2x2",
        "fsdp_tp_2x2_strided", "optimizer_adamw_w2", "optimizer_adamw_w2_flat",
        "many_keys", "handmade_minimal", "variant_base", "variant_protocol_2",
        "variant_protocol_5", "variant_enum_by_name",
        "variant_path_python_3_13", "variant_properties_of_torch_2_1",
        "variant_properties_of_six", "variant_extra_attribute"),
    [](const auto& info) { return std::string(info.param); });

TEST(DcpFixtures, OfRanksWithMetadataOfTheirOwnAreRead) {
  for (int rank = 0; rank < 2; ++rank) {
    const Metadata metadata =
        metadata_of("rank_metadata_w2", str("__", rank, ".metadata"));
    const json& keys = expected().at("rank_metadata_w2").at("ranks").at(rank);
    EXPECT_EQ(
        encode(value_of_key("rank_metadata_w2", metadata.values.at("rank"))),
        keys.at("rank").at("value"));
    const StoredTensor& weight = metadata.tensors.at("weight");
    ASSERT_EQ(weight.boxes.size(), 1U);
    const auto bytes =
        read_box("rank_metadata_w2", "weight", weight, weight.boxes[0].box);
    const std::string data = keys.at("weight").at("data");
    EXPECT_EQ(hex(bytes), rank == 0 ? data.substr(0, 48) : data.substr(48));
  }
}

TEST(DcpFixtures, OfUnevenFsdpAndTensorParallelismAreRefusedWithTheReason) {
  const CheckpointReader reader(DCP_FIXTURES "/broken_fsdp_tp_3x2");
  const StoredTensor& weight = reader.metadata().tensors.at("weight");
  const Box whole = whole_box(weight.sizes);
  std::vector<std::byte> bytes(*num_bytes_of(weight.dtype, weight.sizes));
  const std::vector<std::string> errors = {
      message_of<CheckpointError>(
          [&] { reader.read_box("weight", whole, bytes); }),
      message_of<CheckpointError>([&] { (void)reader.verify(); })};
  for (const std::string& error : errors) {
    for (const char* part : {"'weight'", ".distcp'", "cut unevenly"}) {
      EXPECT_NE(error.find(part), std::string::npos) << error;
    }
  }
}

TEST(DcpFixtures, WithTransformedItemsSayWhich) {
  const Metadata metadata = metadata_of("variant_transform_zstd");
  EXPECT_EQ(metadata.tensors.at("weight").boxes.at(0).place.transforms,
            std::vector<std::string>{"stream.zstd/1"});
}

}  // namespace
}  // namespace tessera::checkpoint
