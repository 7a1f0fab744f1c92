// What ranks read and write, the words of the command, and the port.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <csignal>
#include <map>
#include <memory>
#include <sstream>

#include "cli/launch/file_descriptor.h"
#include "tests/launch/running_program.h"

namespace tessera::launch {
namespace {

TEST(RunInput, GoesToRankZeroAndIsEmptyForTheOthers) {
  RunningProgram program(run_script(3, "echo $RANK:$(cat)", {"--tag-output"}),
                         {.input = "hello"});
  EXPECT_EQ(program.wait(), 0);
  const std::string output = program.output();
  EXPECT_NE(output.find("[rank 0] 0:hello\n"), std::string::npos) << output;
  EXPECT_NE(output.find("[rank 1] 1:\n"), std::string::npos) << output;
  EXPECT_NE(output.find("[rank 2] 2:\n"), std::string::npos) << output;
}

TEST(RunCommand, GetsItsWordsUntouched) {
  const std::vector<std::string> words = {"",   "[a,b]", "--",   "run", "-n",
                                          "$x", "a b",   "\"q'", "*"};
  std::vector<std::string> argv = {TESSERA_PROGRAM, "run", "-n", "1", "--",
                                   "printf",        "<%s>"};
  argv.insert(argv.end(), words.begin(), words.end());
  RunningProgram program(argv);
  EXPECT_EQ(program.wait(), 0);
  EXPECT_EQ(program.output(), "<><[a,b]><--><run><-n><$x><a b><\"q'><*>");
}

TEST(RunOutput, IsPassedOnAsItIsByDefault) {
  RunningProgram program(run_script(1, "printf 'no end'; printf oops >&2"));
  EXPECT_EQ(program.wait(), 0);
  EXPECT_EQ(program.output(), "no end");
  EXPECT_EQ(program.error(), "oops");
}

TEST(RunOutput, KeepsStandardErrorApartWhenTagged) {
  RunningProgram program(
      run_script(1, "echo out; echo err >&2; printf end", {"--tag-output"}));
  EXPECT_EQ(program.wait(), 0);
  EXPECT_EQ(program.output(), "[rank 0] out\n[rank 0] end\n");
  EXPECT_EQ(program.error(), "[rank 0] err\n");
}

// Lines are written in two pieces, so that the ranks' writes interleave.
TEST(RunOutput, NeverMixesTheLinesOfTwoRanksWhenTagged) {
  RunningProgram program(run_script(3, R"(
      i=0; while [ $i -lt 500 ]; do
        printf "$RANK$RANK$RANK"; echo "$RANK$RANK"; i=$((i + 1)); done)",
                                    {"--tag-output"}));
  EXPECT_EQ(program.wait(), 0);
  std::map<std::string, int> count;
  std::istringstream lines(program.output());
  for (std::string line; std::getline(lines, line);) ++count[line];
  const std::map<std::string, int> expected = {{"[rank 0] 00000", 500},
                                               {"[rank 1] 11111", 500},
                                               {"[rank 2] 22222", 500}};
  EXPECT_EQ(count, expected);
}

TEST(RunOutput, EndsTheRanksWhenNobodyReadsIt) {
  const std::string tessera = TESSERA_PROGRAM;
  RunningProgram program({"bash", "-c",
                          tessera +
                              " run -n 2 --tag-output -- yes | head -n 1; "
                              "echo ${PIPESTATUS[0]}"});
  EXPECT_EQ(program.wait(), 0);
  EXPECT_NE(program.output().find("\n141\n"), std::string::npos)
      << program.output();  // 128 + SIGPIPE
}

// Asks for the port as somebody would who knows nothing of the job.
bool port_is_free(int port) {
  const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  return ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address),
                sizeof(address)) == 0;
}

TEST(RunPort, BelongsToTheJobUntilItsEndEvenWhenNoRankListens) {
  RunningProgram program(run_script(1, "echo $MASTER_PORT; exec sleep 1000"));
  const int port = numbers(program.wait_for_lines(1)).at(0);
  EXPECT_FALSE(port_is_free(port));
  program.send(SIGTERM);
  EXPECT_EQ(program.wait(), 143);
  EXPECT_TRUE(port_is_free(port));
}

TEST(RunPort, IsNeverSharedByTwentyJobsAtOnce) {
  std::vector<std::unique_ptr<RunningProgram>> jobs;
  for (int job = 0; job < 20; ++job) {
    jobs.push_back(std::make_unique<RunningProgram>(std::vector<std::string>{
        TESSERA_PROGRAM, "run", "-n", "3", "--", LAUNCH_TEST_RANK}));
  }
  for (const auto& job : jobs) EXPECT_EQ(job->wait(), 0) << job->error();
}

}  // namespace
}  // namespace tessera::launch
