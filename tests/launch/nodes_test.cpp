// Several launchers that make up one job: on this machine, and in two network
// namespaces where they can be made.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <sstream>

#include "cli/launch/file_descriptor.h"
#include "tessera/base/error.h"
#include "tests/launch/running_program.h"
#include "tests/support/held_port.h"

namespace tessera::launch {
namespace {

using Words = std::vector<std::string>;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Dead after 5 s: a busy machine may not let a launcher run for one or two.
constexpr const char* kSettings =
    "join_timeout=40,keep_alive_interval=0.5,keep_alive_max_attempt=10";
constexpr const char* kImpatient = "join_timeout=1";

enum class Backend { c10d, fixed };

/// The launchers of one job.
struct Nodes {
  explicit Nodes(Backend backend) : backend(backend) {}

  RunningProgram& start(int node, int num_ranks, const std::string& script,
                        const Words& options = {}) {
    Words argv = before;
    const Words launcher = {TESSERA_PROGRAM,
                            "run",
                            "--nnodes",
                            num_nodes,
                            "-n",
                            std::to_string(num_ranks),
                            "--kill-after",
                            "5",
                            "--rdzv-conf",
                            settings,
                            "--monitor-interval",
                            "0.05"};
    argv.insert(argv.end(), launcher.begin(), launcher.end());
    const Words meeting =
        backend == Backend::c10d
            ? Words{"--rdzv-backend", "c10d", "--rdzv-endpoint",
                    str(address, ":", port)}
            : Words{"--node-rank", std::to_string(node), "--master-addr",
                    address,       "--master-port",      std::to_string(port)};
    argv.insert(argv.end(), meeting.begin(), meeting.end());
    argv.insert(argv.end(), options.begin(), options.end());
    argv.insert(argv.end(), {"--", "sh", "-c", script});
    programs.push_back(
        std::make_unique<RunningProgram>(argv, ProgramOptions{.in_child = [] {
                                           ::setenv("OMP_NUM_THREADS", "1", 1);
                                         }}));
    return *programs.back();
  }

  Backend backend;
  std::string address = "127.0.0.1";
  std::string num_nodes = "2";
  std::string settings = kSettings;
  int port = testing::held_port();
  Words before = {};
  std::vector<std::unique_ptr<RunningProgram>> programs;
};

std::vector<std::string> sorted_lines(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  std::ranges::sort(lines);
  return lines;
}

constexpr const char* kWait = "echo ready; exec sleep 1000";

class RunNodes : public ::testing::TestWithParam<Backend> {};

TEST_P(RunNodes, NumberTheirRanksOneAfterTheOther) {
  Nodes nodes(GetParam());
  const std::string script =
      "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK "
      "$GROUP_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT "
      "$TORCHELASTIC_USE_AGENT_STORE $TORCHELASTIC_RUN_ID";
  RunningProgram& first = nodes.start(0, 2, script);
  RunningProgram& second = nodes.start(1, 1, script);
  EXPECT_EQ(first.wait(), 0) << first.error();
  EXPECT_EQ(second.wait(), 0) << second.error();
  const std::string end = str(" 127.0.0.1:", nodes.port, " True none");
  auto lines = sorted_lines(first.output() + second.output());
  ASSERT_EQ(lines.size(), 3U);
  // Under c10d either may have come first and hold the store.
  if (first.output().starts_with("0") || first.output().starts_with("1 1")) {
    EXPECT_EQ(lines, (Words{"0 0 3 2 0 2" + end, "1 1 3 2 0 2" + end,
                            "2 0 3 1 1 2" + end}));
  } else {
    EXPECT_EQ(lines, (Words{"0 0 3 1 0 2" + end, "1 0 3 2 1 2" + end,
                            "2 1 3 2 1 2" + end}));
  }
}

TEST_P(RunNodes, EndTogetherWithTheCodeAndTheNameOfTheRankThatFailed) {
  Nodes nodes(GetParam());
  RunningProgram& first = nodes.start(0, 1, kWait);
  RunningProgram& second = nodes.start(1, 1, "exit 3");
  EXPECT_EQ(second.wait(), 3) << second.error();
  EXPECT_EQ(first.wait(), 3) << first.error();
  EXPECT_TRUE(contains(first.error(), "exited with code 3 on node"))
      << first.error();
}

TEST_P(RunNodes, StartAnewTogether) {
  Nodes nodes(GetParam());
  const Words restarts = {"--max-restarts", "1"};
  RunningProgram& first =
      nodes.start(0, 1,
                  "echo $TORCHELASTIC_RESTART_COUNT; "
                  "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exec sleep 1000",
                  restarts);
  RunningProgram& second = nodes.start(
      1, 1, "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 3", restarts);
  EXPECT_EQ(second.wait(), 0) << second.error();
  EXPECT_EQ(first.wait(), 0) << first.error();
  EXPECT_TRUE(first.output().ends_with("1\n")) << first.error();
}

TEST_P(RunNodes, EndTogetherWhenOneLauncherIsToldTo) {
  Nodes nodes(GetParam());
  RunningProgram& first = nodes.start(0, 1, kWait);
  RunningProgram& second = nodes.start(
      1, 1, "trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done");
  (void)first.wait_for_lines(1);
  (void)second.wait_for_lines(1);
  first.send(SIGTERM);
  EXPECT_EQ(first.wait(), 143) << first.error();
  EXPECT_EQ(second.wait(), 0) << second.error();
  EXPECT_TRUE(contains(second.error(), "got SIGTERM")) << second.error();
}

INSTANTIATE_TEST_SUITE_P(Backends, RunNodes,
                         ::testing::Values(Backend::c10d, Backend::fixed),
                         [](const auto& info) {
                           return info.param == Backend::c10d ? "C10d"
                                                              : "Static";
                         });

TEST(RunNodes, EndWhenTheLauncherOfAnotherIsKilled) {
  Nodes nodes(Backend::fixed);
  RunningProgram& first = nodes.start(0, 2, "echo $$; exec sleep 1000");
  RunningProgram& second = nodes.start(1, 1, kWait);
  const auto ranks = numbers(first.wait_for_lines(2));
  (void)second.wait_for_lines(1);
  second.send(SIGKILL);
  EXPECT_EQ(second.wait(), 137);
  EXPECT_EQ(first.wait(), 123) << first.error();
  EXPECT_TRUE(contains(first.error(), "has not answered for 5 s"))
      << first.error();
  for (const pid_t rank : ranks) EXPECT_FALSE(alive(rank));
}

TEST(RunNodes, EndWhenTheLauncherThatHoldsTheStoreIsKilled) {
  Nodes nodes(Backend::fixed);
  RunningProgram& first = nodes.start(0, 1, kWait);
  RunningProgram& second = nodes.start(1, 1, "echo $$; exec sleep 1000");
  (void)first.wait_for_lines(1);
  const auto ranks = numbers(second.wait_for_lines(1));
  first.send(SIGKILL);
  EXPECT_EQ(first.wait(), 137);
  EXPECT_EQ(second.wait(), 123) << second.error();
  EXPECT_TRUE(contains(second.error(), "the store of the job at 127.0.0.1:"))
      << second.error();
  EXPECT_FALSE(alive(ranks.at(0)));
}

TEST(RunNodes, TakeANewLauncherInPlaceOfOneThatWasKilled) {
  Nodes nodes(Backend::fixed);
  const Words restarts = {"--max-restarts", "1"};
  const std::string script =
      "echo $TORCHELASTIC_RESTART_COUNT; "
      "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exec sleep 1000";
  RunningProgram& first = nodes.start(0, 1, script, restarts);
  RunningProgram& second = nodes.start(1, 1, script, restarts);
  (void)first.wait_for_lines(1);
  (void)second.wait_for_lines(1);
  second.send(SIGKILL);
  EXPECT_EQ(second.wait(), 137);
  RunningProgram& third = nodes.start(1, 1, script, restarts);
  EXPECT_EQ(third.wait(), 0) << third.error();
  EXPECT_EQ(third.output(), "1\n");
  EXPECT_EQ(first.wait(), 0) << first.error();
}

// Ranks of an elastic job wait until there are as many as it ends with.
TEST(RunNodes, OfAnElasticJobGrowAndShrinkWithTheLaunchersThatAreThere) {
  Nodes nodes(Backend::c10d);
  nodes.num_nodes = "1:2";
  nodes.settings = str(kSettings, ",last_call_timeout=4");
  const Words restarts = {"--max-restarts", "1"};
  const std::string script =
      "echo $TORCHELASTIC_RESTART_COUNT: $RANK of $WORLD_SIZE on "
      "$GROUP_WORLD_SIZE; "
      "[ $TORCHELASTIC_RESTART_COUNT = 2 ] || exec sleep 1000";
  RunningProgram& first = nodes.start(0, 2, script, restarts);
  EXPECT_EQ(sorted_lines(first.wait_for_lines(2)),
            (Words{"0: 0 of 2 on 1", "0: 1 of 2 on 1"}));
  RunningProgram& second = nodes.start(1, 1, script, restarts);
  EXPECT_EQ(second.wait_for_lines(1), "1: 2 of 3 on 2\n");
  (void)first.wait_for_lines(4);
  second.send(SIGKILL);
  EXPECT_EQ(second.wait(), 137);
  EXPECT_EQ(first.wait(), 0) << first.error();
  EXPECT_EQ(sorted_lines(first.output()),
            (Words{"0: 0 of 2 on 1", "0: 1 of 2 on 1", "1: 0 of 3 on 2",
                   "1: 1 of 3 on 2", "2: 0 of 2 on 1", "2: 1 of 2 on 1"}));
  EXPECT_TRUE(contains(first.error(), "has come: restarting all ranks"))
      << first.error();
}

TEST(RunNodes, SayWhichNodeNeverCame) {
  Nodes nodes(Backend::fixed);
  nodes.settings = kImpatient;
  RunningProgram& alone = nodes.start(0, 1, "echo started");
  EXPECT_EQ(alone.wait(), 122);
  EXPECT_TRUE(contains(alone.error(), "within 1 s; missing: node 1"))
      << alone.error();
  EXPECT_EQ(alone.output(), "");
}

TEST(RunNodes, SayThatNobodyHoldsTheStore) {
  Nodes nodes(Backend::fixed);
  nodes.settings = kImpatient;
  RunningProgram& alone = nodes.start(1, 1, "echo started");
  EXPECT_EQ(alone.wait(), 122);
  EXPECT_TRUE(contains(alone.error(),
                       "cannot reach the store of the job at "
                       "127.0.0.1:"))
      << alone.error();
}

TEST(RunNodes, SayThatThePortIsTaken) {
  Nodes nodes(Backend::fixed);
  const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(nodes.port));
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address),
                   sizeof(address)),
            0);
  ASSERT_EQ(::listen(socket.get(), 1), 0);
  RunningProgram& program = nodes.start(0, 1, "echo started");
  EXPECT_EQ(program.wait(), 121);
  EXPECT_TRUE(contains(program.error(), "is the port taken"))
      << program.error();
}

TEST(RunNodes, GiveUpWaitingAtAnInterrupt) {
  Nodes nodes(Backend::fixed);
  RunningProgram& program = nodes.start(1, 1, "echo started");
  ASSERT_TRUE(eventually([&] {
    return descendants(program.process()).size() == 1;  // the guard
  }));
  program.send(SIGINT);
  EXPECT_EQ(program.wait(), 130) << program.error();
}

// Two machines as far as the network goes: each has an address of its own.
class Machines : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string setup =
        "ip netns add " + name(0) + " && ip netns add " + name(1) +
        " && ip link add ta" + id_ + " netns " + name(0) +
        " type veth peer name tb" + id_ + " netns " + name(1) + " && ip -n " +
        name(0) + " addr add 10.99.0.1/24 dev ta" + id_ + " && ip -n " +
        name(1) + " addr add 10.99.0.2/24 dev tb" + id_ + " && for n in " +
        name(0) + " " + name(1) +
        "; do ip -n $n link set lo up; done && ip -n " + name(0) +
        " link set ta" + id_ + " up && ip -n " + name(1) + " link set tb" +
        id_ + " up";
    RunningProgram program({"sh", "-c", setup});
    if (program.wait() != 0) {
      GTEST_SKIP() << "no network namespaces here (they need root and ip): "
                   << program.error();
    }
  }
  void TearDown() override {
    RunningProgram program(
        {"sh", "-c", "ip netns del " + name(0) + "; ip netns del " + name(1)});
    (void)program.wait();
  }
  [[nodiscard]] std::string name(int machine) const {
    return "tessera" + id_ + "_" + std::to_string(machine);
  }
  RunningProgram& start(Nodes& nodes, int machine, const std::string& script) {
    nodes.address = "10.99.0.1";
    nodes.before = {"ip", "netns", "exec", name(machine)};
    return nodes.start(machine, 1, script);
  }
  std::string id_ = std::to_string(::getpid() % 100'000);
};

TEST_F(Machines, MeetAtTheOneWhoseAddressIsGiven) {
  for (const Backend backend : {Backend::c10d, Backend::fixed}) {
    Nodes nodes(backend);
    const std::string script = "echo $RANK $WORLD_SIZE $MASTER_ADDR";
    RunningProgram& second = start(nodes, 1, script);
    RunningProgram& first = start(nodes, 0, script);
    EXPECT_EQ(first.wait(), 0) << first.error();
    EXPECT_EQ(second.wait(), 0) << second.error();
    EXPECT_EQ(first.output(), "0 2 10.99.0.1\n");
    EXPECT_EQ(second.output(), "1 2 10.99.0.1\n");
  }
}

// Nothing closes a connection here: only silence tells.
TEST_F(Machines, MissOneThatTheNetworkHasLost) {
  Nodes nodes(Backend::c10d);
  RunningProgram& first = start(nodes, 0, kWait);
  RunningProgram& second = start(nodes, 1, kWait);
  (void)first.wait_for_lines(1);
  (void)second.wait_for_lines(1);
  RunningProgram cut({"ip", "-n", name(1), "link", "set", "tb" + id_, "down"});
  EXPECT_EQ(cut.wait(), 0);
  EXPECT_EQ(first.wait(), 123) << first.error();
  EXPECT_EQ(second.wait(), 123) << second.error();
}

}  // namespace
}  // namespace tessera::launch
