// `tessera completion`, by running the completion of the real shell.
#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tests/launch/running_program.h"

namespace tessera::launch {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// What bash offers for `words`, the last of which is being typed.
std::string offered(const std::string& words) {
  const std::string tessera = TESSERA_PROGRAM;
  RunningProgram program(
      {"bash", "-c",
       "source <(" + tessera + " completion bash); COMP_WORDS=(" + words +
           "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _tessera; "
           "printf ' %s' \"${COMPREPLY[@]}\"; echo ' '"});
  EXPECT_EQ(program.wait(), 0) << program.error();
  EXPECT_EQ(program.error(), "");
  return program.output();
}

// The error names every command there is.
TEST(Completion, OffersEveryCommandThatThereIs) {
  RunningProgram program({TESSERA_PROGRAM});
  EXPECT_EQ(program.wait(), 2);
  const std::string error = program.error();
  const std::string before = "give a subcommand: ";
  const size_t begin = error.find(before) + before.size();
  std::string names = error.substr(begin, error.find('\n') - begin) + ",";
  const std::string words = offered("tessera ''");
  int count = 0;
  for (size_t end = 0; (end = names.find(',')) != std::string::npos; ++count) {
    EXPECT_TRUE(contains(words, " " + names.substr(0, end) + " ")) << words;
    names.erase(0, std::min(names.size(), end + 2));
  }
  EXPECT_GE(count, 3);
}

TEST(Completion, OffersTheOptionsOfTheCommandThatWasTyped) {
  EXPECT_EQ(offered("tessera run --nproc"), " --nproc-per-node \n");
  EXPECT_EQ(offered("tessera --nproc"), "  \n");
  EXPECT_TRUE(contains(offered("tessera run -"), " --max-restarts "));
  EXPECT_EQ(offered("tessera completion ''"), " bash zsh fish \n");
}

TEST(Completion, OffersTheChoicesOfAnOption) {
  EXPECT_EQ(offered("tessera run --rdzv-backend ''"), " static c10d \n");
  EXPECT_EQ(offered("tessera run --rdzv-backend = c"), " c10d \n");
  EXPECT_TRUE(contains(offered("tessera run --log-dir /pro"), " /proc "));
}

TEST(Completion, LeavesWhatFollowsTheDashesToTheOtherCommand) {
  EXPECT_TRUE(contains(offered("tessera run -n 2 -- tru"), " true "));
  EXPECT_TRUE(contains(offered("tessera run -- ls /pro"), " /proc "));
}

TEST(Completion, KnowsThreeShellsAndRefusesOthers) {
  for (const char* shell : {"zsh", "fish"}) {
    RunningProgram program({TESSERA_PROGRAM, "completion", shell});
    EXPECT_EQ(program.wait(), 0);
    EXPECT_TRUE(contains(program.output(), "rdzv-backend")) << shell;
  }
  RunningProgram program({TESSERA_PROGRAM, "completion", "tcsh"});
  EXPECT_EQ(program.wait(), 2);
  EXPECT_TRUE(contains(program.error(), "tcsh")) << program.error();
}

}  // namespace
}  // namespace tessera::launch
