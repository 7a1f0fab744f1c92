#include "examples/train_text/text.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/base/error.h"

namespace train_text {
namespace {

torch::Tensor bytes(const std::string& text) {
  return torch::tensor(std::vector<int64_t>(text.begin(), text.end()));
}

TEST(Text, TargetsAreTheNextBytes) {
  const Text text("It is a truth");
  const auto batch = text.batch({0, 2}, 4);
  EXPECT_TRUE(torch::equal(batch.input[0], bytes("It i")));
  EXPECT_TRUE(torch::equal(batch.target[0], bytes("t is")));
  EXPECT_TRUE(torch::equal(batch.input[1], bytes("trut").slice(0, 0, 4)));
  EXPECT_TRUE(torch::equal(batch.target[1], bytes("ruth")));
}

TEST(Text, EveryByteButTheFirstIsATargetOnce) {
  const std::string alphabet = "abcdefghijklm";  // 3 windows of 4, and one byte
  const Text text(alphabet);
  ASSERT_EQ(text.num_windows(4), 3);
  EXPECT_TRUE(torch::equal(text.batch({0, 1, 2}, 4).target.flatten(),
                           bytes(alphabet.substr(1))));
}

TEST(Text, CountsOnlyWholeWindows) {
  for (int64_t size = 0; size < 10; ++size) {
    const Text text(std::string(size, 'x'));
    EXPECT_EQ(text.num_windows(3), size == 0 ? 0 : (size - 1) / 3) << size;
  }
}

TEST(Text, AWindowPastTheEndHasNoTargets) {
  const Text text("abcde");
  const auto batch = text.batch({1, 0}, 4);
  EXPECT_TRUE(batch.target[0].eq(Text::kIgnored).all().item<bool>());
  EXPECT_TRUE(torch::equal(batch.target[1], bytes("bcde")));
  EXPECT_EQ(batch.input.sizes(), (std::vector<int64_t>{2, 4}));
}

TEST(Text, BytesAboveAsciiStayBytes) {
  const Text text("\xc2\xa3\xff");
  EXPECT_TRUE(torch::equal(text.batch({0}, 2).input[0],
                           torch::tensor({0xc2, 0xa3}, torch::kLong)));
}

TEST(Text, AMissingFileIsNamedWithTheRemedy) {
  try {
    Text::from_file("no/such/file.txt");
    FAIL() << "no error";
  } catch (const tessera::InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("no/such/file.txt"),
              std::string::npos);
    EXPECT_NE(std::string(error.what()).find("fetch_corpus"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace train_text
