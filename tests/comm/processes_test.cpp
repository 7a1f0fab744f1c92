// The same as real processes, started as a launcher starts them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "tessera/base/error.h"
#include "tests/support/held_port.h"

namespace tessera {
namespace {

using testing::held_port;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Variables = std::vector<std::string>;

// Of the workers: long enough for a busy machine to start them all.
constexpr auto kTimeout = 20s;

/// A worker process; its output goes to a file. Killed when still there.
class Worker {
 public:
  Worker(const std::string& what, Variables variables,
         std::chrono::seconds timeout = kTimeout)
      : output_(std::filesystem::temp_directory_path() /
                str("comm_worker_", ::getpid(), "_", next_number())) {
    std::string program = COMM_WORKER;
    std::string argument = what;
    std::string seconds = std::to_string(timeout.count());
    char* arguments[] = {program.data(), argument.data(), seconds.data(),
                         nullptr};
    std::vector<char*> environment;
    for (std::string& variable : variables) {
      environment.push_back(variable.data());
    }
    environment.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output_.c_str(),
                                     O_CREAT | O_TRUNC | O_WRONLY | O_APPEND,
                                     0600);
    posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    EXPECT_EQ(::posix_spawn(&pid_, program.c_str(), &actions, nullptr,
                            arguments, environment.data()),
              0);
    posix_spawn_file_actions_destroy(&actions);
  }

  Worker(Worker&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)),
        output_(std::move(other.output_)) {}

  ~Worker() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    std::error_code ignored;
    if (!output_.empty()) std::filesystem::remove(output_, ignored);
  }

  /// The exit code, minus the signal, or -1000 when it does not end in time.
  int end(std::chrono::seconds within = 60s) {
    const auto deadline = Clock::now() + within;
    int status = 0;
    while (::waitpid(pid_, &status, WNOHANG) == 0) {
      if (Clock::now() > deadline) return -1000;
      std::this_thread::sleep_for(10ms);
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  [[nodiscard]] std::string output() const {
    std::ostringstream text;
    text << std::ifstream(output_).rdbuf();
    return text.str();
  }

 private:
  static int next_number() {
    static int number = 0;
    return number++;
  }

  pid_t pid_ = -1;
  std::filesystem::path output_;
};

Variables rank_variables(int rank, int world_size, int port) {
  return {str("RANK=", rank), str("WORLD_SIZE=", world_size),
          str("LOCAL_RANK=", rank), "MASTER_ADDR=127.0.0.1",
          str("MASTER_PORT=", port)};
}

std::vector<Worker> start(const std::string& what, int world_size, int port,
                          const Variables& more = {},
                          std::chrono::seconds timeout = kTimeout) {
  std::vector<Worker> workers;
  for (int rank = 0; rank < world_size; ++rank) {
    Variables variables = rank_variables(rank, world_size, port);
    variables.insert(variables.end(), more.begin(), more.end());
    workers.emplace_back(what, std::move(variables), timeout);
  }
  return workers;
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

/// The lines of `text` in which none of `parts` is.
std::string lines_beside(const std::string& text,
                         const std::vector<std::string>& parts) {
  std::istringstream lines(text);
  std::string others;
  for (std::string line; std::getline(lines, line);) {
    const bool known = std::any_of(
        parts.begin(), parts.end(),
        [&](const std::string& part) { return contains(line, part); });
    if (!known) others += line + "\n";
  }
  return others;
}

TEST(Processes, MeetAtTheStoreOfRankZeroAndPartInGoodOrder) {
  for (const char* what : {"sum", "slow_end", "finish", "slow_end, finish"}) {
    auto workers = start(what, 2, held_port());
    for (Worker& worker : workers) {
      EXPECT_EQ(worker.end(), 0) << what << ": " << worker.output();
      EXPECT_TRUE(contains(worker.output(), "sum 3\n")) << worker.output();
      EXPECT_FALSE(contains(worker.output(), "the end of the world"))
          << worker.output();
    }
    EXPECT_TRUE(contains(workers[0].output(),
                         "job found by RANK and "
                         "WORLD_SIZE: 2 ranks, Gloo"))
        << workers[0].output();
  }
}

// LibTorch's TCP store warns of each wait that ends by a time-out.
TEST(Processes, LogNothingWhileTheyWaitAtTheStore) {
  const auto begin = Clock::now();
  auto workers = start("wait", 2, held_port());
  for (Worker& worker : workers) {
    EXPECT_EQ(worker.end(), 0) << worker.output();
    EXPECT_TRUE(contains(worker.output(), "sum 3\n")) << worker.output();
    EXPECT_EQ(lines_beside(worker.output(), {"sum 3", "job found by"}), "");
  }
  EXPECT_GT(Clock::now() - begin, 6s);
}

TEST(Processes, WhatIsFoundAtTheEndIsTheErrorOfAllWhoFinish) {
  auto workers = start("unlike, finish", 2, held_port());
  for (Worker& worker : workers) {
    EXPECT_EQ(worker.end(), 9) << worker.output();
    EXPECT_TRUE(contains(worker.output(), "unlike at the end"))
        << worker.output();
  }
}

TEST(Processes, WhatIsFoundAtTheEndIsLoggedWhereNobodyFinishes) {
  auto workers = start("unlike", 2, held_port());
  for (Worker& worker : workers) {
    EXPECT_EQ(worker.end(), 0) << worker.output();
    EXPECT_TRUE(contains(worker.output(), "unlike at the end"))
        << worker.output();
  }
}

TEST(Processes, RunAloneWithoutALauncher) {
  Worker worker("sum", {});
  EXPECT_EQ(worker.end(), 0);
  EXPECT_TRUE(contains(worker.output(), "job found by one process"));
  EXPECT_TRUE(contains(worker.output(), "sum 1\n"));
}

// The agent's store outlives a restart, with all keys of the dead ranks.
TEST(Processes, MeetAtTheStoreOfAnAgentAlsoAfterARestart) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  c10d::TCPStore agent("127.0.0.1", options);
  for (const int restart : {0, 1, 2}) {
    auto workers =
        start("sum", 2, agent.getPort(),
              {"TORCHELASTIC_USE_AGENT_STORE=True", "TORCHELASTIC_RUN_ID=run-7",
               str("TORCHELASTIC_RESTART_COUNT=", restart)});
    for (Worker& worker : workers) {
      EXPECT_EQ(worker.end(), 0) << restart << ": " << worker.output();
      EXPECT_TRUE(contains(worker.output(), "sum 3\n")) << worker.output();
    }
    EXPECT_TRUE(contains(workers[0].output(), "job found by torchrun"))
        << workers[0].output();
  }
}

TEST(Processes, ARankThatDiesIsNamedAtOnce) {  // A49
  const auto begin = Clock::now();
  auto workers = start("die", 3, held_port());
  EXPECT_EQ(workers[1].end(), 3);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(workers[rank].end(), 9) << workers[rank].output();
    EXPECT_TRUE(contains(workers[rank].output(), "Out of step: rank 1."))
        << workers[rank].output();
    EXPECT_TRUE(contains(workers[rank].output(), "no answer"))
        << workers[rank].output();
    EXPECT_TRUE(contains(workers[rank].output(), "unit 'layers.1'"))
        << workers[rank].output();
  }
  EXPECT_LT(Clock::now() - begin, 40s);
}

TEST(Processes, ARankThatStaysAwayIsNamedAndEnded) {  // A49
  // The time-out also counts while the processes start: not the short one.
  auto workers = start("stay_away", 2, held_port());
  EXPECT_EQ(workers[0].end(), 9) << workers[0].output();
  EXPECT_TRUE(contains(workers[0].output(), "Out of step: rank 1."))
      << workers[0].output();
  EXPECT_TRUE(contains(workers[0].output(), "layers.0")) << workers[0].output();
  EXPECT_EQ(workers[1].end(), 70) << workers[1].output();
  EXPECT_TRUE(contains(workers[1].output(), "ending it with code 70"))
      << workers[1].output();
}

TEST(Processes, AnUncaughtErrorIsReportedByAllRanks) {
  auto workers = start("throw", 2, held_port());
  EXPECT_EQ(workers[1].end(), -SIGABRT) << workers[1].output();
  EXPECT_TRUE(contains(workers[1].output(), "uncaught exception: row 7"))
      << workers[1].output();
  EXPECT_EQ(workers[0].end(), 9) << workers[0].output();
  EXPECT_TRUE(contains(workers[0].output(), "rank 1: row 7"))
      << workers[0].output();
}

TEST(Processes, AreEndedAlsoWhereABackendHangsWhileItIsAborted) {
  const auto begin = Clock::now();
  auto workers = start("hang_in_abort", 2, held_port());
  EXPECT_EQ(workers[1].end(), -SIGABRT) << workers[1].output();
  EXPECT_EQ(workers[0].end(), 70) << workers[0].output();
  EXPECT_TRUE(contains(workers[0].output(), "ending it with code 70"))
      << workers[0].output();
  EXPECT_LT(Clock::now() - begin, 30s);
}

TEST(Processes, TwoWithOneRankAreRefused) {
  const int port = held_port();
  Worker first("sum", rank_variables(0, 3, port));
  Worker second("sum", rank_variables(1, 3, port));
  Worker third("sum", rank_variables(1, 3, port));
  const int second_code = second.end();
  const int third_code = third.end();
  EXPECT_TRUE(second_code == 9 && third_code == 9)
      << second.output() << third.output();
  EXPECT_TRUE(
      contains(second.output() + third.output(), "two processes have RANK 1"))
      << second.output() << third.output();
  EXPECT_EQ(first.end(), 9) << first.output();
}

TEST(Processes, AStoreThatCannotBeReachedIsNamed) {
  const int port = held_port();
  Worker worker("sum", rank_variables(1, 2, port), 2s);
  EXPECT_EQ(worker.end(), 9) << worker.output();
  EXPECT_TRUE(contains(worker.output(), str("MASTER_PORT ", port)))
      << worker.output();
}

}  // namespace
}  // namespace tessera
