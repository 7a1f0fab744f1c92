// One state in every layout that torch saves, loaded here at every number of
// ranks; and what is saved here, loaded by torch in every layout. Bit by bit.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>

#include "tests/checkpoint/block.h"
#include "tests/support/temporary_folder.h"

namespace tessera::checkpoint {
namespace {

using testing::TemporaryFolder;
using namespace std::chrono_literals;

// What the script printed when it failed, else "".
std::string python(const std::string& arguments) {
  const char* interpreter = std::getenv("TESSERA_PYTHON");
  if (interpreter == nullptr) return "set TESSERA_PYTHON";
  FILE* pipe = ::popen(
      str("timeout 400 ", interpreter, " " MATRIX " ", arguments, " 2>&1")
          .c_str(),
      "r");
  std::string output;
  std::array<char, 4096> buffer{};
  while (const size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    output.append(buffer.data(), got);
  }
  return ::pclose(pipe) == 0 ? "" : "it failed: " + output;
}

// Loads `from` at `ranks` ranks and saves it to `to`.
void pass_through(const std::string& from, int ranks, const std::string& to) {
  run_ranks(
      ranks,
      [&](const World& world) {
        Trained trained(ranks == 1 ? World() : world, 100);
        const State state = state_of(*trained.block, *trained.optimizer);
        load(from, state, {.world = world});
        save(to, state, {.world = world});
      },
      30s);
}

TEST(Matrix, OfLayoutsAndRankCountsIsTheSameBitByBit) {
  const TemporaryFolder folder;
  ASSERT_EQ(python("write " + folder.path()), "");
  std::string ours;
  for (const char* layout :
       {"plain", "fsdp1", "fsdp2", "fsdp3", "fsdp4", "tp2", "fsdp_tp"}) {
    for (const int ranks : {1, 2, 3, 4}) {
      const std::string again = folder / str(layout, "-at-", ranks);
      pass_through(folder / layout, ranks, again);
      EXPECT_EQ(difference(folder / "plain", again), "") << again;
      if (layout == std::string("plain")) ours += " " + again;
    }
  }
  EXPECT_EQ(python("check" + ours), "");
}

}  // namespace
}  // namespace tessera::checkpoint
