// The pure parts: exit statuses in words, processor quotas, lines with a tag.
#include <gtest/gtest.h>

#include <csignal>

#include "cli/launch/exit_status.h"
#include "cli/launch/processors.h"
#include "cli/launch/tagged_output.h"

namespace tessera::launch {
namespace {

int exited(int code) { return code << 8; }

TEST(ExitStatus, TellsAnExitCodeFromASignal) {
  EXPECT_TRUE(ExitStatus(exited(0)).success());
  EXPECT_EQ(ExitStatus(exited(0)).code(), 0);
  EXPECT_FALSE(ExitStatus(exited(3)).success());
  EXPECT_EQ(ExitStatus(exited(3)).code(), 3);
  EXPECT_EQ(ExitStatus(exited(3)).signal(), 0);
  EXPECT_EQ(ExitStatus(exited(3)).describe(), "exited with code 3");
  EXPECT_FALSE(ExitStatus(SIGSEGV).success());
  EXPECT_EQ(ExitStatus(SIGSEGV).code(), 139);
  EXPECT_EQ(ExitStatus(SIGSEGV).signal(), SIGSEGV);
  EXPECT_EQ(ExitStatus(SIGSEGV).describe(),
            "was killed by SIGSEGV (Segmentation fault)");
}

TEST(ExitStatus, SaysWhatAKillOftenMeans) {
  EXPECT_NE(ExitStatus(SIGKILL).describe().find("out-of-memory"),
            std::string::npos);
}

TEST(ExitStatus, NamesSignalsAndNumbersTheNameless) {
  EXPECT_EQ(signal_name(SIGTERM), "SIGTERM");
  EXPECT_EQ(signal_name(SIGRTMIN + 3),
            "signal " + std::to_string(SIGRTMIN + 3));
}

TEST(Processors, RoundAQuotaUpAndKnowNoLimit) {
  EXPECT_EQ(processors_of_quota("200000 100000"), 2);
  EXPECT_EQ(processors_of_quota("150000 100000"), 2);
  EXPECT_EQ(processors_of_quota("1000 100000"), 1);
  EXPECT_EQ(processors_of_quota("max 100000"), 0);
  EXPECT_EQ(processors_of_quota(""), 0);
  EXPECT_EQ(processors_of_quota("100000 0"), 0);
  EXPECT_GE(num_usable_processors(), 1);
}

std::string take(std::string& partial, TakeLines which = TakeLines::complete) {
  return take_lines(partial, "> ", which);
}

TEST(TakeLines, LeavesAnUnfinishedLineUntilItsEndComes) {
  std::string partial = "one\ntwo\nthr";
  EXPECT_EQ(take(partial), "> one\n> two\n");
  EXPECT_EQ(partial, "thr");
  EXPECT_EQ(take(partial), "");
  partial += "ee\n";
  EXPECT_EQ(take(partial), "> three\n");
  EXPECT_EQ(partial, "");
}

TEST(TakeLines, EndsTheLastLineOfAProgramThatDoesNot) {
  std::string partial = "one\ntw";
  EXPECT_EQ(take(partial, TakeLines::final), "> one\n> tw\n");
  EXPECT_EQ(take(partial, TakeLines::final), "");
}

TEST(TakeLines, TagsEachStateOfAProgressBar) {
  std::string partial = "10%\r20%\r\n30%\r";
  EXPECT_EQ(take(partial), "> 10%\r> 20%\r\n");
  EXPECT_EQ(partial, "30%\r") << "a \\n may follow";
  partial += "\n\n";
  EXPECT_EQ(take(partial), "> 30%\r\n> \n");
}

TEST(TakeLines, CutsALineThatNeverEnds) {
  std::string partial(64 * 1024 + 7, 'x');
  EXPECT_EQ(take(partial), "> " + std::string(64 * 1024, 'x') + "\n");
  EXPECT_EQ(partial.size(), 7U);
}

}  // namespace
}  // namespace tessera::launch
