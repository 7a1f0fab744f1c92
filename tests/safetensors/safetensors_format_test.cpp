// Headers, right and wrong. No tensors here.
#include "tessera/checkpoint/safetensors_format.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tessera/base/error.h"
#include "tests/support/temporary_folder.h"

namespace tessera::safetensors {
namespace {

using testing::message_of;
using testing::TemporaryFolder;

std::string error_of(const std::string& json, uint64_t data_bytes) {
  return message_of<CheckpointError>(
      [&] { (void)parse_header(json, 8 + json.size() + data_bytes, "w"); });
}

bool says(const std::string& message, const std::string& part) {
  return message.find(part) != std::string::npos;
}

TEST(SafetensorsHeader, ReadsBackWhatIsLaidOut) {
  std::vector<Entry> entries = {{"b", Dtype::uint8, {3}},
                                {"a", Dtype::float32, {2, 3}},
                                {"empty", Dtype::bfloat16, {0, 4}},
                                {"scalar", Dtype::float64, {}}};
  const std::string bytes = lay_out(entries, {{"format", "pt"}});
  EXPECT_EQ(bytes.size() % 4096, 0U);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ(length, bytes.size() - 8);
  const Header header =
      parse_header(std::string_view(bytes).substr(8), bytes.size() + 35, "w");
  ASSERT_EQ(header.tensors.size(), 4U);
  EXPECT_EQ(header.metadata.at("format"), "pt");
  const std::vector<std::string> order = {"scalar", "a", "empty", "b"};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(header.tensors[i].name, order[i]);
    EXPECT_EQ(entries[i].name, order[i]);
    EXPECT_EQ(header.tensors[i].sizes, entries[i].sizes);
    EXPECT_EQ(header.tensors[i].begin, entries[i].begin);
    EXPECT_EQ(header.tensors[i].end, entries[i].end);
  }
}

TEST(SafetensorsHeader, RefusesWhatDoesNotFitTheFileOrItself) {
  const std::string a =
      R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  EXPECT_EQ(error_of("{" + a + "}", 8), "(no such error)");
  const auto refused = [&](const std::string& json, uint64_t bytes,
                           const std::string& why) {
    const std::string message = error_of(json, bytes);
    EXPECT_TRUE(says(message, why)) << json << " -> " << message;
  };
  refused("{" + a + "}", 7, "lies at 0 to 8 of 7");
  refused("{" + a + "}", 9, "it is cut");
  refused("{" + a + "," + a + "}", 8, "twice");
  refused("[]", 0, "not a JSON object");
  refused("{", 0, "not JSON");
  refused("{\"a\":3}", 0, "not described");
  refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
          R"("b":{"dtype":"U8","shape":[4],"data_offsets":[6,10]}})",
          10, "overlap");
  refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12,
          "gaps");
  refused(R"({"a":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}})", 8,
          "not known");
  refused(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8,
          "does not fit");
  refused(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8,
          "expected 0 or more");
  refused(R"({"a":{"dtype":"F32","shape":[2.5],"data_offsets":[0,8]}})", 8,
          "expected 0 or more");
  refused(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],)"
          R"("data_offsets":[0,0]}})",
          0, "does not fit");
  refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8,
          "lies at");
  refused(R"({"a":{"dtype":"F32","shape":[2]}})", 8, "data_offsets");
  refused(R"({"__metadata__":{"a":1}})", 0, "not text");
}

TEST(SafetensorsHeader, IsNotReadBeyondTheFile) {
  const TemporaryFolder folder;
  const std::string path = folder / "weights.safetensors";
  testing::write_bytes(path, "abc");
  EXPECT_TRUE(
      says(message_of<CheckpointError>([&] { (void)read_header(path); }),
           "less than 8"));
  const std::string huge("\xff\xff\xff\xff\xff\xff\xff\x7f{}");
  const std::string longer_than_the_file("\x03\0\0\0\0\0\0\0{}", 10);
  for (const std::string& bytes : {huge, longer_than_the_file}) {
    testing::write_bytes(path, bytes);
    EXPECT_TRUE(
        says(message_of<CheckpointError>([&] { (void)read_header(path); }),
             "claims"));
  }
}

TEST(SafetensorsHeader, IsRefusedBeforeItIsWrittenWrong) {
  std::vector<Entry> twice = {{"a", Dtype::uint8, {1}},
                              {"a", Dtype::int8, {1}}};
  EXPECT_THROW((void)lay_out(twice, {}), InvalidArgument);
  std::vector<Entry> reserved = {{"__metadata__", Dtype::uint8, {1}}};
  EXPECT_THROW((void)lay_out(reserved, {}), InvalidArgument);
  std::vector<Entry> missing = {{"a", Dtype::complex128, {1}}};
  EXPECT_THROW((void)lay_out(missing, {}), Unsupported);
}

TEST(SafetensorsFiles, AreFilledInOrderUpToTheirSize) {
  EXPECT_EQ(divide_into_files({4, 4, 4, 9, 1}, 8),
            (std::vector<size_t>{0, 0, 1, 2, 3}));
  EXPECT_EQ(divide_into_files({4, 4, 4, 4, 4}, 8),
            (std::vector<size_t>{0, 0, 1, 1, 2}));
  EXPECT_EQ(divide_into_files({}, 8), std::vector<size_t>{});
  EXPECT_EQ(file_name(0, 1), "model.safetensors");
  EXPECT_EQ(file_name(1, 3), "model-00002-of-00003.safetensors");
}

TEST(SafetensorsIndex, ReadsBackAndLeavesNoFolder) {
  const Index index{{{"a", "x.safetensors"}, {"b", "y.safetensors"}}, 12};
  EXPECT_EQ(parse_index(write_index(index), "i").file_of, index.file_of);
  for (const char* file : {"../x", "/etc/passwd", "a/b", "..", ""}) {
    const std::string json = str(R"({"weight_map":{"a":")", file, R"("}})");
    EXPECT_TRUE(
        says(message_of<CheckpointError>([&] { (void)parse_index(json, "i"); }),
             "plain file name"))
        << file;
  }
}

}  // namespace
}  // namespace tessera::safetensors
