// Tensors to files and back.
#include "tessera/checkpoint/safetensors.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>

#include "tessera/base/error.h"
#include "tests/support/temporary_folder.h"

namespace tessera::safetensors {
namespace {

using testing::message_of;
using testing::TemporaryFolder;

NamedTensors of_all_dtypes() {
  NamedTensors tensors;
  for (const auto type :
       {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt,
        at::kShort, at::kChar, at::kByte, at::kBool, at::kComplexFloat,
        at::kUInt16, at::kUInt32, at::kUInt64, at::kFloat8_e5m2,
        at::kFloat8_e4m3fn, at::kFloat8_e5m2fnuz, at::kFloat8_e4m3fnuz,
        at::kFloat8_e8m0fnu}) {
    const auto size = static_cast<int64_t>(c10::elementSize(type));
    const at::Tensor bytes =
        type == at::kBool ? torch::tensor({1, 0, 1, 1, 0, 1}, torch::kByte)
                          : torch::arange(1, 6 * size + 1, torch::kByte);
    tensors.emplace_back(std::string("t.") + c10::toString(type),
                         bytes.view(type).view({2, 3}));
  }
  return tensors;
}

void expect_same(const at::Tensor& a, const at::Tensor& b) {
  ASSERT_EQ(a.scalar_type(), b.scalar_type());
  ASSERT_EQ(a.sizes(), b.sizes());
  const at::Tensor left = a.contiguous();
  const at::Tensor right = b.contiguous();
  const auto* bytes = static_cast<const char*>(left.const_data_ptr());
  EXPECT_TRUE(std::equal(bytes, bytes + left.nbytes(),
                         static_cast<const char*>(right.const_data_ptr())));
}

TEST(Safetensors, BringsBackEveryDtypeShapeAndStride) {
  const TemporaryFolder folder;
  NamedTensors saved = of_all_dtypes();
  const at::Tensor ramp = torch::arange(24, torch::kFloat).view({4, 6});
  saved.emplace_back("transposed", ramp.t());
  saved.emplace_back("columns", ramp.narrow(1, 2, 3));
  saved.emplace_back("scalar", torch::tensor(3.5));
  saved.emplace_back("empty", torch::zeros({3, 0}));
  saved.emplace_back("conjugate", torch::complex(ramp, ramp).conj());
  saved.emplace_back("same memory", ramp);
  save(folder / "w", saved);
  std::map<std::string, at::Tensor> loaded;
  for (auto& [name, tensor] : load(folder / "w")) loaded[name] = tensor;
  ASSERT_EQ(loaded.size(), saved.size());
  for (const auto& [name, tensor] : saved) {
    SCOPED_TRACE(name);
    expect_same(loaded.at(name), tensor.resolve_conj());
  }
}

TEST(Safetensors, FolderDividesTensorsAndForgetsAnEarlierSave) {
  const TemporaryFolder folder;
  NamedTensors tensors;
  for (int i = 0; i < 5; ++i) {
    tensors.emplace_back(str("layer.", i), torch::full({4}, i));
  }
  save_folder(folder.path(), tensors, 64);
  EXPECT_TRUE(std::filesystem::exists(folder / std::string(kIndexName)));
  EXPECT_EQ(load_folder(folder.path()).size(), 5U);
  save_folder(folder.path(), tensors);
  EXPECT_FALSE(std::filesystem::exists(folder / std::string(kIndexName)));
  EXPECT_FALSE(
      std::filesystem::exists(folder / "model-00001-of-00003.safetensors"));
  EXPECT_TRUE(load_folder(folder.path())[3].second.equal(torch::full({4}, 3)));
}

TEST(Safetensors, ATensorThatTheIndexPromisesMustBeThere) {
  const TemporaryFolder folder;
  save(folder / "x.safetensors", {{"a", torch::ones(2)}});
  testing::write_bytes(folder / std::string(kIndexName),
                       R"({"weight_map":{"a":"x.safetensors",)"
                       R"("b":"x.safetensors"}})");
  EXPECT_NE(message_of<CheckpointError>([&] {
              (void)load_folder(folder.path());
            }).find("tensor 'b'"),
            std::string::npos);
}

TEST(Safetensors, ASaveThatFailsLeavesTheOldFileAndNoOther) {
  const TemporaryFolder folder;
  save(folder / "w", {{"a", torch::ones(2)}});
  const at::Tensor unknown = torch::zeros(2, torch::kComplexDouble);
  EXPECT_THROW(save(folder / "w", {{"a", unknown}}), Unsupported);
  EXPECT_TRUE(load(folder / "w")[0].second.equal(torch::ones(2)));
  // After all is written: a folder is in the way.
  std::filesystem::create_directories(folder / "taken/x");
  EXPECT_THROW(save(folder / "taken", {{"a", torch::ones(2)}}),
               CheckpointError);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()),
                          std::filesystem::directory_iterator()),
            2);
}

}  // namespace
}  // namespace tessera::safetensors
