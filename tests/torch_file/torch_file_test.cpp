// Files of torch.save: read, written, and refused.
#include "tessera/checkpoint/torch_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "tessera/base/error.h"
#include "tessera/checkpoint/convert.h"
#include "tessera/checkpoint/pickle.h"
#include "tessera/checkpoint/zip_file_writer.h"
#include "tests/support/temporary_folder.h"

namespace tessera::checkpoint {
namespace {

using testing::message_of;
using testing::TemporaryFolder;

// Runs the referee; returns what it printed when it failed, else "".
std::string referee(const std::string& arguments) {
  const char* python = std::getenv("TESSERA_PYTHON");
  if (python == nullptr) return "set TESSERA_PYTHON";
  FILE* pipe = ::popen(
      str("timeout 400 ", python, " " REFEREE " ", arguments, " 2>&1").c_str(),
      "r");
  std::string output;
  std::array<char, 4096> buffer{};
  while (const size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    output.append(buffer.data(), got);
  }
  return ::pclose(pipe) == 0 ? "" : "it failed: " + output;
}

// What Python wrote, once for all tests.
class TorchFile : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    ASSERT_EQ(referee("write " + folder_->path()), "");
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  static std::string at(const std::string& name) { return *folder_ / name; }

  static TemporaryFolder* folder_;
};

TemporaryFolder* TorchFile::folder_ = nullptr;

TEST_F(TorchFile, IsReadAndWrittenAsPythonDoes) {
  for (const char* name :
       {"dtypes", "nested", "module", "optimizer", "unchecked"}) {
    SCOPED_TRACE(name);
    const std::string made = at(str(name, ".pt"));
    const std::string again = at(str(name, "-again.pt"));
    ASSERT_NO_THROW(convert(made, at(name), Form::checkpoint));
    ASSERT_NO_THROW(convert(at(name), again, Form::torch_file));
  }
  for (const char* name : {"plain_all_dtypes", "optimizer_adamw_w2",
                           "many_keys", "fsdp2_w2_uneven"}) {
    SCOPED_TRACE(name);
    ASSERT_NO_THROW(convert(str(DCP_FIXTURES "/", name),
                            at(str(name, "-fixture.pt")), Form::torch_file));
  }
  EXPECT_EQ(referee(str("check ", folder_->path(), " " DCP_FIXTURES)), "");
}

TEST_F(TorchFile, ThatIsNotUnderstoodIsRefusedByName) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"old.bad", "before 1.6"},
      {"pair.bad", "'pair' cannot be read"},
      {"device.bad", "'device' cannot be read"},
      {"nameless.bad", "no dict of names"},
      {"script.bad", "is compressed"},
  };
  for (const auto& [name, expected] : cases) {
    const std::string error =
        message_of<Error>([&] { (void)open_torch_file(at(name)); });
    EXPECT_NE(error.find(expected), std::string::npos) << name << ": " << error;
    EXPECT_NE(error.find(name), std::string::npos) << error;
  }
}

TEST_F(TorchFile, CutOrFlippedAnywhereIsRefusedOrReadsTheSame) {
  const std::string bytes = testing::read_bytes(at("module.pt"));
  const auto all_of = [](const std::string& path) {
    std::vector<std::byte> all;
    for (const ContentTensor& tensor : open_torch_file(path).tensors) {
      const auto data = tensor.read();
      all.insert(all.end(), data.begin(), data.end());
    }
    return all;
  };
  const auto expected = all_of(at("module.pt"));
  const std::string spoiled = at("spoiled");
  for (size_t i = 0; i < bytes.size(); i += 3) {
    std::string other = bytes;
    other[i] ^= 0x10;
    testing::write_bytes(spoiled, other);
    try {
      EXPECT_EQ(all_of(spoiled), expected) << i;
    } catch (const Error&) {
      // Refused.
    }
    testing::write_bytes(spoiled, bytes.substr(0, i));
    EXPECT_THROW((void)all_of(spoiled), Error) << i;
  }
}

std::string file_with_program(const std::string& program) {
  static const TemporaryFolder folder;
  const std::string path = folder / "a.pt";
  replace_by(*local_storage(), path, [&](WritableFile& file) {
    ZipFileWriter zip(file);
    zip.add("data.pkl", program);
    zip.finish();
  });
  return path;
}

TEST(HostileTorchFile, RunsNothing) {
  PickleWriter out;
  out.empty_dict().mark().text("a");
  out.global("posix", "system").mark().text("touch /tmp/owned").tuple();
  out.reduce().setitems();
  const std::string path = file_with_program(out.finish());
  const std::string error =
      message_of<CheckpointError>([&] { (void)open_torch_file(path); });
  EXPECT_NE(error.find("it would call 'posix system'"), std::string::npos)
      << error;
}

TEST(HostileTorchFile, WithATensorOfNoDataIsRefused) {
  PickleWriter out;
  out.empty_dict().mark().text("a");
  out.global("torch._utils", "_rebuild_tensor_v2").mark().mark();
  out.text("storage").global("torch", "FloatStorage").text("0").text("cpu");
  out.integer(int64_t{1} << 60).tuple().persistent_id().integer(0);
  out.mark().integer(int64_t{1} << 60).tuple().mark().integer(1).tuple();
  out.boolean(false).global("collections", "OrderedDict").empty_tuple();
  out.reduce().tuple().reduce().setitems();
  const std::string path = file_with_program(out.finish());
  EXPECT_THROW((void)open_torch_file(path), CheckpointError);
}

Contents one_byte(const std::vector<Path>& paths) {
  Contents contents{.where = "here"};
  for (const Path& path : paths) {
    contents.tensors.push_back(
        {path, Dtype::uint8, {1}, [] { return std::vector<std::byte>(1); }});
  }
  return contents;
}

TEST(WriteTorchFile, RefusesANameThatIsALeafAndAFolder) {
  const TemporaryFolder folder;
  const std::string path = folder / "a.pt";
  testing::write_bytes(path, "older");
  for (const std::vector<Path>& paths :
       {std::vector<Path>{{"a"}, {"a", "b"}}, std::vector<Path>{{"a"}, {"a"}},
        std::vector<Path>{{"a", 0}, {"a", "b"}}}) {
    EXPECT_THROW(write_torch_file(one_byte(paths), path), InvalidArgument);
  }
  EXPECT_EQ(testing::read_bytes(path), "older");
  EXPECT_EQ(local_storage()->list(folder.path()),
            std::vector<std::string>{"a.pt"});
}

TEST(WriteTorchFile, FillsListsAndKeepsWhatWasThereUntilItIsWhole) {
  const TemporaryFolder folder;
  const std::string path = folder / "a.pt";
  testing::write_bytes(path, "older");
  Contents failing = one_byte({{"a"}});
  failing.tensors[0].read = []() -> std::vector<std::byte> {
    throw CheckpointError("no such bytes");
  };
  EXPECT_THROW(write_torch_file(failing, path), CheckpointError);
  EXPECT_EQ(testing::read_bytes(path), "older");
  write_torch_file(one_byte({{"a", 2}, {"a", 0}}), path);
  const Contents read = open_torch_file(path);
  ASSERT_EQ(read.tensors.size(), 2U);
  EXPECT_EQ(key_of(read.tensors[0].path), "a.0");
  EXPECT_EQ(key_of(read.tensors[1].path), "a.2");
  ASSERT_EQ(read.values.size(), 1U);
  EXPECT_TRUE(read.values[0].value.is_none());
  EXPECT_EQ(local_storage()->list(folder.path()),
            std::vector<std::string>{"a.pt"});
}

TEST(Convert, TakesAndPutsPrefixes) {
  const TemporaryFolder folder;
  Contents contents =
      one_byte({{"model", "w.x"}, {"model2", "w"}, {"optim", "state", "w"}});
  contents.values.push_back({{"model", "n"}, 3});
  contents.values.push_back({{"optim", "n"}, 4});
  uint64_t told = 0;
  write_checkpoint(contents, folder / "c", [&](uint64_t done, uint64_t all) {
    told = std::max(told, done);
    EXPECT_EQ(all, 3U);
  });
  EXPECT_EQ(told, 3U);
  const Converted first = convert(folder / "c", folder / "w.safetensors",
                                  Form::safetensors, {.from_prefix = "model"});
  EXPECT_EQ(first.num_tensors, 1U);
  EXPECT_EQ(first.num_left_out, 1U);
  convert(folder / "w.safetensors", folder / "w.pt", Form::torch_file,
          {.to_prefix = "net"});
  convert(folder / "w.pt", folder / "w", Form::safetensors);
  convert(folder / "w", folder / "d", Form::checkpoint,
          {.from_prefix = "net", .to_prefix = "model"});
  const Contents again = open_contents(folder / "d");
  ASSERT_EQ(again.tensors.size(), 1U);
  EXPECT_EQ(key_of(again.tensors[0].path), "model.w.x");
  EXPECT_THROW(convert(folder / "c", folder / "e", Form::checkpoint,
                       {.from_prefix = "other"}),
               InvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(folder / "e"));
  EXPECT_THROW(convert(folder / "none", folder / "e", Form::checkpoint),
               CheckpointError);
}

TEST(Convert, TellsFormsByTheirNames) {
  EXPECT_EQ(form_for("a.safetensors"), Form::safetensors);
  for (const char* name : {"a.pt", "a.pth", "pytorch_model.bin", "a.ckpt"}) {
    EXPECT_EQ(form_for(name), Form::torch_file) << name;
  }
  EXPECT_EQ(form_for("ckpt/step-10"), Form::checkpoint);
}

}  // namespace
}  // namespace tessera::checkpoint
