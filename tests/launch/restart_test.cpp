// Restarts, log files, error files and the variables that stand for options.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/launch/file_descriptor.h"
#include "tessera/base/error.h"
#include "tests/launch/running_program.h"

namespace tessera::launch {
namespace {

namespace fs = std::filesystem;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string contents(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// A folder that goes with the test.
struct Folder {
  Folder() {
    std::string name = testing::TempDir() + "/run_XXXXXX";
    path = ::mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  [[nodiscard]] fs::path only_entry() const {
    std::vector<fs::path> entries(fs::directory_iterator(path), {});
    return entries.size() == 1 ? entries[0] : fs::path("not one entry");
  }
  fs::path path;
};

TEST(RunRestarts, StartAllRanksAnewWithTheNextCount) {
  RunningProgram program(run_script(2, R"(
      echo "$TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS"
      [ $TORCHELASTIC_RESTART_COUNT = 2 ] && exit 0
      said=$(dirname $(dirname $TORCHELASTIC_ERROR_FILE))/said$TORCHELASTIC_RESTART_COUNT
      [ $RANK = 0 ] && : > $said && exec sleep 1000
      until [ -e $said ]; do sleep 0.01; done; exit 3)",
                                    {"--max-restarts", "2"}));
  EXPECT_EQ(program.wait(), 0) << program.error();
  const std::string output = program.output();
  EXPECT_EQ(std::ranges::count(output, '\n'), 6) << output;
  EXPECT_TRUE(contains(output, "0 of 2") && contains(output, "1 of 2") &&
              contains(output, "2 of 2"))
      << output;
  EXPECT_TRUE(contains(program.error(), "restart 2 of 2")) << program.error();
}

TEST(RunRestarts, ReturnTheLastCodeWhenTheyAreUsedUp) {
  RunningProgram program(run_script(
      2, "exit $((TORCHELASTIC_RESTART_COUNT + 4))", {"--max-restarts", "1"}));
  EXPECT_EQ(program.wait(), 5);
}

TEST(RunRestarts, AreNotForASignalToTheLauncher) {
  RunningProgram program(
      run_script(2, "echo ready; exec sleep 1000", {"--max-restarts", "5"}));
  (void)program.wait_for_lines(2);
  program.send(SIGTERM);
  EXPECT_EQ(program.wait(), 143);
  EXPECT_FALSE(contains(program.error(), "restarting")) << program.error();
}

TEST(RunLogs, LieInTorchrunsFoldersAndOnTheTerminalWhenTeed) {
  const Folder folder;
  RunningProgram program(
      run_script(2, "echo out $RANK; echo err $RANK >&2",
                 {"--log-dir", folder.path, "--tee", "3", "--rdzv-id", "a/b"}));
  EXPECT_EQ(program.wait(), 0) << program.error();
  const fs::path run = folder.only_entry();
  EXPECT_TRUE(run.filename().string().starts_with("a_b_")) << run;
  for (const char* rank : {"0", "1"}) {
    const fs::path logs = run / "attempt_0" / rank;
    EXPECT_EQ(contents(logs / "stdout.log"), str("out ", rank, "\n"));
    EXPECT_EQ(contents(logs / "stderr.log"), str("err ", rank, "\n"));
    EXPECT_TRUE(contains(program.output(), str("[rank ", rank, "] out")));
    EXPECT_TRUE(contains(program.error(), str("[rank ", rank, "] err")));
  }
}

TEST(RunLogs, KeepEachAttemptApart) {
  const Folder folder;
  RunningProgram program(
      run_script(1, "echo $TORCHELASTIC_RESTART_COUNT; exit 3",
                 {"--log-dir", folder.path, "-r", "3", "--max-restarts", "1"}));
  EXPECT_EQ(program.wait(), 3);
  const fs::path run = folder.only_entry();
  EXPECT_EQ(contents(run / "attempt_0/0/stdout.log"), "0\n");
  EXPECT_EQ(contents(run / "attempt_1/0/stdout.log"), "1\n");
}

TEST(RunLogs, ShowTheTailOfTheRankThatFailedFirst) {
  const Folder folder;
  RunningProgram program(run_script(2, R"(
      [ $RANK = 0 ] && exec sleep 1000
      i=1; while [ $i -le 40 ]; do echo line $i >&2; i=$((i + 1)); done; exit 3)",
                                    {"--log-dir", folder.path, "-r", "3"}));
  EXPECT_EQ(program.wait(), 3);
  const std::string error = program.error();
  EXPECT_TRUE(contains(error, "the last lines of rank 1:")) << error;
  EXPECT_TRUE(contains(error, "  | line 31\n") && contains(error, "line 40"))
      << error;
  EXPECT_FALSE(contains(error, "line 30\n")) << error;
  EXPECT_EQ(program.output(), "");
}

TEST(RunLogs, ShowTheTailOfTaggedOutputToo) {
  RunningProgram program(
      run_script(1, "echo the reason; exit 3", {"--tag-output"}));
  EXPECT_EQ(program.wait(), 3);
  EXPECT_TRUE(contains(program.error(), "  | the reason")) << program.error();
}

TEST(RunLogs, ComeFromTheRanksOfTheFilterAlone) {
  RunningProgram program(
      run_script(3, "echo $RANK", {"--local-ranks-filter", "0,2"}));
  EXPECT_EQ(program.wait(), 0);
  std::string output = program.output();
  EXPECT_EQ(output.size(), 4U);
  EXPECT_FALSE(contains(output, "1")) << output;
}

TEST(RunLogs, LeaveNoFolderBehindWhenNobodyAskedForOne) {
  const Folder folder;
  RunningProgram program(
      run_script(2, "echo $TORCHELASTIC_ERROR_FILE"),
      {.in_child = [&] { ::setenv("TMPDIR", folder.path.c_str(), 1); }});
  EXPECT_EQ(program.wait(), 0);
  EXPECT_TRUE(contains(program.output(), folder.path.string() + "/"));
  EXPECT_TRUE(contains(program.output(), "/attempt_0/1/error.json"));
  EXPECT_TRUE(fs::is_empty(folder.path));
}

TEST(RunLogs, AreRefusedWhereNoFolderCanBe) {
  RunningProgram program(run_script(2, "echo", {"--log-dir", "/proc/none"}));
  EXPECT_EQ(program.wait(), 125);
  EXPECT_TRUE(contains(program.error(), "folder for logs in '/proc/none'"))
      << program.error();
}

// No file may grow here, as on a full disk; cat's output may.
TEST(RunLogs, SayWhenTheDiskIsFullAndRunOn) {
  const Folder folder;
  RunningProgram program(
      {"bash", "-c",
       str("(trap '' XFSZ; ulimit -f 0; exec ", TESSERA_PROGRAM,
           " run -n 1 --tee 1 --log-dir ", folder.path.string(),
           " -- sh -c 'echo one; echo two') 2>&1 | cat")});
  EXPECT_EQ(program.wait(), 0);
  EXPECT_TRUE(contains(program.output(), "cannot write the log of rank 0"))
      << program.output();
  EXPECT_TRUE(contains(program.output(), "[rank 0] two")) << program.output();
}

// Rank 1 writes its error and takes its time; rank 0 ends at once because of
// it, and is seen to end first.
TEST(RunErrorFiles, NameTheRankThatFailedFirstThoughItDiedLater) {
  RunningProgram program(run_script(2, R"(
      other=$(dirname $TORCHELASTIC_ERROR_FILE)/../1/error.json
      if [ $RANK = 0 ]; then
        while [ ! -s $other ]; do sleep 0.01; done; exit 9
      fi
      trap '' TERM
      echo '{"message": {"message": "ValueError: row 7"}}' > $TORCHELASTIC_ERROR_FILE
      sleep 1; exit 5)"));
  EXPECT_EQ(program.wait(), 5) << program.error();
  const std::string error = program.error();
  EXPECT_TRUE(contains(error, "rank 1 wrote down this error:")) << error;
  EXPECT_TRUE(contains(error, "  | ValueError: row 7")) << error;
  EXPECT_TRUE(contains(error, "the first to fail was rank 1")) << error;
}

TEST(RunVariables, StandForOptionsAndYieldToThem) {
  const auto set = [] {
    ::setenv("PET_NPROC_PER_NODE", "3", 1);
    ::setenv("PET_STANDALONE", "1", 1);
    ::setenv("PET_NO_PYTHON", "0", 1);
    ::setenv("PET_MAX_RESTARTS", "4", 1);
  };
  RunningProgram program(
      {TESSERA_PROGRAM, "run", "--max_restarts=5", "--", "sh", "-c",
       "echo $WORLD_SIZE $TORCHELASTIC_MAX_RESTARTS"},
      {.in_child = set});
  EXPECT_EQ(program.wait(), 0) << program.error();
  EXPECT_EQ(program.output(), "3 5\n3 5\n3 5\n");
}

TEST(RunVariables, TakeTheSpellingsOfTorchrun) {
  RunningProgram program({TESSERA_PROGRAM, "run", "--no-python", "--standalone",
                          "--nnodes=1:1", "--nproc_per_node=2", "--role", "gen",
                          "--", "sh", "-c", "echo $ROLE_NAME $WORLD_SIZE"});
  EXPECT_EQ(program.wait(), 0) << program.error();
  EXPECT_EQ(program.output(), "gen 2\ngen 2\n");
}

TEST(RunVariables, StartOneRankWhenNobodySaysHowMany) {
  RunningProgram program(
      {TESSERA_PROGRAM, "run", "--", "sh", "-c", "echo $WORLD_SIZE"});
  EXPECT_EQ(program.wait(), 0) << program.error();
  EXPECT_EQ(program.output(), "1\n");
}

/// Listens on a port of the system's choice.
struct Listener {
  Listener() : socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    socklen_t size = sizeof(address);
    EXPECT_EQ(::listen(socket.get(), 1), 0);
    ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port = ntohs(address.sin_port);
  }
  FileDescriptor socket;
  int port = 0;
};

TEST(RunPort, IsRefusedWhenSomebodyListensThere) {
  const Listener listener;
  RunningProgram program(run_script(
      2, "echo started", {"--master-port", std::to_string(listener.port)}));
  EXPECT_EQ(program.wait(), 121);
  EXPECT_TRUE(
      contains(program.error(), str("cannot have port ", listener.port)))
      << program.error();
  EXPECT_EQ(program.output(), "");
}

TEST(RunPort, IsRefusedToASecondJobThoughNobodyListensYet) {
  int port = 0;
  { port = Listener().port; }
  const std::vector<std::string> at_port = {"--master-port",
                                            std::to_string(port)};
  RunningProgram first(
      run_script(1, "echo $MASTER_PORT; exec sleep 1000", at_port));
  EXPECT_EQ(numbers(first.wait_for_lines(1)).at(0), port);
  RunningProgram second(run_script(1, "echo started", at_port));
  EXPECT_EQ(second.wait(), 121);
  first.send(SIGTERM);
  EXPECT_EQ(first.wait(), 143);
  RunningProgram third(run_script(1, "echo started", at_port));
  EXPECT_EQ(third.wait(), 0) << third.error();
}

}  // namespace
}  // namespace tessera::launch
