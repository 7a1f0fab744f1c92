// What `tessera run` says and returns when ranks succeed, fail, or never start.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/launch/running_program.h"

namespace tessera::launch {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Run, ReturnsZeroAndSaysNothingWhenAllRanksSucceed) {
  RunningProgram program(run_script(3, "exit 0"), {.in_child = [] {
                           ::setenv("OMP_NUM_THREADS", "1", 1);
                         }});
  EXPECT_EQ(program.wait(), 0);
  EXPECT_EQ(program.output(), "");
  EXPECT_EQ(program.error(), "");
}

TEST(Run, SaysOnceHowManyThreadsEachRankGets) {
  RunningProgram program(run_script(2, "echo $OMP_NUM_THREADS"),
                         {.in_child = [] { ::unsetenv("OMP_NUM_THREADS"); }});
  EXPECT_EQ(program.wait(), 0);
  EXPECT_EQ(numbers(program.output()).size(), 2U);
  const std::string error = program.error();
  EXPECT_TRUE(contains(error, "OMP_NUM_THREADS is not set")) << error;
  EXPECT_EQ(error.find("OMP_NUM_THREADS"), error.rfind("OMP_NUM_THREADS"));
}

TEST(Run, ReturnsTheCodeOfTheRankThatFailedAndNamesIt) {
  RunningProgram program(run_script(3, "[ $RANK = 1 ] && exit 3; exit 0"));
  EXPECT_EQ(program.wait(), 3);
  EXPECT_TRUE(contains(program.error(), "rank 1 (process")) << program.error();
  EXPECT_TRUE(contains(program.error(), "exited with code 3"));
}

// Ranks wait until the test lets rank 2 fail by a signal passed on to all.
TEST(Run, StopsTheOthersAndNamesTheFirstWhenSeveralFail) {
  RunningProgram program(run_script(4, R"(
    trap 'exit 9' TERM; trap '' USR1
    [ $RANK = 2 ] && trap 'exit 7' USR1
    echo ready; while :; do sleep 0.01; done)"));
  (void)program.wait_for_lines(4);
  program.send(SIGUSR1);
  EXPECT_EQ(program.wait(), 7);
  const std::string error = program.error();
  EXPECT_TRUE(contains(error, "Stopping the 3 ranks still running")) << error;
  EXPECT_TRUE(contains(error, "the first to fail was rank 2")) << error;
  EXPECT_FALSE(contains(error, "code 9")) << error;
}

TEST(Run, ReportsADeathBySignalAs128PlusTheSignal) {
  RunningProgram program(
      run_script(2, "[ $RANK = 1 ] && kill -SEGV $$; exec sleep 1000"));
  EXPECT_EQ(program.wait(), 139);
  EXPECT_TRUE(contains(program.error(), "rank 1")) << program.error();
  EXPECT_TRUE(contains(program.error(), "SIGSEGV")) << program.error();
}

TEST(Run, KillsARankThatIgnoresSigterm) {
  RunningProgram program(run_script(2, R"(
    trap '' TERM USR1
    [ $RANK = 1 ] && trap 'exit 5' USR1
    echo $$; while :; do sleep 0.01; done)",
                                    {"--kill-after", "0.3"}));
  const std::vector<pid_t> ranks = numbers(program.wait_for_lines(2));
  program.send(SIGUSR1);
  EXPECT_EQ(program.wait(), 5);
  const std::string error = program.error();
  EXPECT_TRUE(contains(error, "rank 0")) << error;
  EXPECT_TRUE(contains(error, "did not end within 0.3 s; killing it")) << error;
  for (const pid_t rank : ranks) EXPECT_FALSE(alive(rank));
}

struct BadCommand {
  std::vector<std::string> words;
  int exit_code;
  std::string message;
};

void PrintTo(const BadCommand& bad, std::ostream* out) { *out << bad.message; }

class RunRefuses : public testing::TestWithParam<BadCommand> {};

TEST_P(RunRefuses, WithOneSentenceAndItsOwnCode) {
  std::vector<std::string> argv = {TESSERA_PROGRAM};
  const auto& words = GetParam().words;
  argv.insert(argv.end(), words.begin(), words.end());
  RunningProgram program(argv);
  EXPECT_EQ(program.wait(), GetParam().exit_code);
  EXPECT_TRUE(contains(program.error(), GetParam().message)) << program.error();
  EXPECT_EQ(program.output(), "");
}

INSTANTIATE_TEST_SUITE_P(
    Words, RunRefuses,
    testing::Values(
        BadCommand{{}, 2, "give a subcommand: "},
        BadCommand{{"rum"}, 2, "there is no subcommand 'rum'"},
        BadCommand{{"run", "-n", "0", "--", "true"}, 2, "(-n) is 0"},
        BadCommand{{"run", "-n", "-2", "--", "true"}, 2, "(-n) is -2"},
        BadCommand{{"run", "-n", "two", "--", "true"},
                   2,
                   "'two'; give a number, or auto, cpu or gpu"},
        BadCommand{
            {"run", "-n", "gpu", "--", "true"}, 2, "shows no CUDA device"},
        BadCommand{{"run", "--nnodes", "1:4", "--", "true"},
                   2,
                   "with --rdzv-backend static the number of nodes is fixed"},
        BadCommand{
            {"run", "--nnodes", "4:1", "--", "true"}, 2, "--nnodes is '4:1'"},
        BadCommand{
            {"run", "--nnodes", "0", "--", "true"}, 2, "--nnodes is '0'"},
        BadCommand{{"run", "--nnodes", "2", "--", "true"},
                   2,
                   "--master-addr is missing"},
        BadCommand{
            {"run", "--nnodes", "2", "--rdzv-backend", "c10d", "--", "true"},
            2,
            "--rdzv-endpoint is missing"},
        BadCommand{{"run", "--nnodes", "2", "--standalone", "--", "true"},
                   2,
                   "--standalone is for one node"},
        BadCommand{{"run", "--nnodes", "2", "--node-rank", "2", "--master-addr",
                    "127.0.0.1", "--", "true"},
                   2,
                   "--node-rank is 2; expected 0 to 1"},
        BadCommand{{"run", "--rdzv-backend", "etcd", "--", "true"},
                   2,
                   "'etcd'; give static or c10d"},
        BadCommand{{"run", "--rdzv-endpoint", "192.0.2.1:4000", "--", "true"},
                   2,
                   "'192.0.2.1' is not this machine"},
        BadCommand{{"run", "--nnodes", "2", "--master-addr", "127.0.0.1",
                    "--rdzv-conf", "read_timeout=3", "--", "true"},
                   2,
                   "--rdzv-conf has no 'read_timeout'"},
        BadCommand{{"run", "--max-restarts", "-1", "--", "true"},
                   2,
                   "--max-restarts is -1"},
        BadCommand{{"run", "--tee", "4", "--", "true"}, 2, "--tee is '4'"},
        BadCommand{{"run", "--signals-to-handle", "SIGKILL", "--", "true"},
                   2,
                   "--signals-to-handle names 'SIGKILL'"},
        BadCommand{{"run", "-n", "2", "true"}, 2, "put -- before the command"},
        BadCommand{{"run", "-n", "2"}, 2, "no command"},
        BadCommand{{"run", "-n", "2", "--"}, 2, "no command"},
        BadCommand{{"run", "-n", "2", "--tagg", "--", "true"},
                   2,
                   "no option '--tagg'"},
        BadCommand{{"run", "-n", "2", "--kill-after", "-1", "--", "true"},
                   2,
                   "--kill-after is -1; give seconds"},
        BadCommand{{"version", "--", "x"}, 2, "takes nothing after --"},
        BadCommand{{"run", "-n", "2", "--", "no_such_command"},
                   127,
                   "'no_such_command' not found in PATH"},
        BadCommand{{"run", "-n", "2", "--", "./no_such"},
                   127,
                   "'./no_such' not found; check the path"},
        BadCommand{
            {"run", "-n", "2", "--", "/etc/passwd"}, 126, "permission denied"},
        BadCommand{{"run", "-n", "2", "--", "/etc"}, 126, "it is a folder"}));

TEST(Run, SaysWhenTheInterpreterOfAScriptIsMissing) {
  const std::string path =
      testing::TempDir() + "/script_" + std::to_string(::getpid());
  std::ofstream(path) << "#!/no/such/interpreter\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  RunningProgram program({TESSERA_PROGRAM, "run", "-n", "2", "--", path});
  EXPECT_EQ(program.wait(), 127);
  EXPECT_TRUE(contains(program.error(), "interpreter")) << program.error();
  std::filesystem::remove(path);
}

TEST(Run, RefusesMoreRanksThanProcessesAreAllowed) {
  RunningProgram program(run_script(6, "echo started"), {.in_child = [] {
                           const rlimit limit{5, 5};
                           ::setrlimit(RLIMIT_NPROC, &limit);
                         }});
  EXPECT_EQ(program.wait(), 124);
  EXPECT_TRUE(contains(program.error(), "may run 5 processes"))
      << program.error();
  EXPECT_EQ(program.output(), "");
}

TEST(Run, LeavesNothingBehindWhenAStartFailsHalfWay) {
  RunningProgram program(
      run_script(40, "echo $$; exec sleep 1000", {"--tag-output"}),
      {.in_child = [] {
        const rlimit limit{32, 32};
        ::setrlimit(RLIMIT_NOFILE, &limit);
      }});
  ASSERT_TRUE(eventually([&] {
    return descendants(program.process()).size() > 1 ||
           !alive(program.process());
  }));
  const std::vector<pid_t> started = descendants(program.process());
  EXPECT_EQ(program.wait(), 125);
  EXPECT_TRUE(contains(program.error(), "ulimit -n")) << program.error();
  for (const pid_t process : started) {
    EXPECT_TRUE(eventually([&] { return !alive(process); }));
  }
}

TEST(Version, PrintsTheThreeVersions) {
  RunningProgram program({TESSERA_PROGRAM, "version"});
  EXPECT_EQ(program.wait(), 0);
  EXPECT_TRUE(contains(program.output(), "tessera 0."));
  EXPECT_TRUE(contains(program.output(), "LibTorch 2.11."));
  EXPECT_TRUE(contains(program.output(), "compiler "));
}

}  // namespace
}  // namespace tessera::launch
