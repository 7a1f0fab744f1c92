#include "examples/train_text/options.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace train_text {
namespace {

template <class... Args>
std::optional<Options> parse(Args... args) {
  std::vector<const char*> line{"train_text", args...};
  return parse_options(static_cast<int>(line.size()),
                       const_cast<char**>(line.data()));
}

TEST(Options, DefaultsAreValidOnOneToFourRanks) {
  const auto options = parse();
  ASSERT_TRUE(options);
  for (int world_size = 1; world_size <= 4; ++world_size) {
    EXPECT_NO_THROW(validate(*options, world_size)) << world_size;
  }
}

TEST(Options, KeyHeadsFollowHeadsUnlessGiven) {
  EXPECT_EQ(parse("--heads", "8")->model.kv_heads, 8);
  EXPECT_EQ(parse("--heads", "8", "--kv-heads", "2")->model.kv_heads, 2);
}

TEST(Options, AnUnknownOptionIsAnError) { EXPECT_FALSE(parse("--stepz", "3")); }

TEST(Options, ABatchThatRanksCannotShareIsRefused) {
  EXPECT_THROW(validate(*parse("--batch", "9"), 2), tessera::InvalidArgument);
  EXPECT_NO_THROW(validate(*parse("--batch", "9"), 3));
}

TEST(Options, PlainIsForOneProcess) {
  EXPECT_NO_THROW(validate(*parse("--plain"), 1));
  EXPECT_THROW(validate(*parse("--plain"), 2), tessera::InvalidArgument);
}

TEST(Options, HeadsMustDivideTheWidthEvenly) {
  EXPECT_THROW(validate(*parse("--dim", "100", "--heads", "3"), 1),
               tessera::InvalidArgument);
  EXPECT_THROW(validate(*parse("--heads", "4", "--kv-heads", "3"), 1),
               tessera::InvalidArgument);
}

}  // namespace
}  // namespace train_text
