#include "cli/launch/rank_environment.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tessera::launch {
namespace {

std::string value(const Environment& environment, const char* name) {
  return find_variable(environment, name).value_or("<unset>");
}

TEST(RankEnvironment, SetsEveryVariableThatTorchrunSets) {
  JobPlace job;
  job.ranks_per_node = 3;
  job.world_size = 3;
  job.master_port = 4321;
  job.run_id = "job-7";
  const Environment environment = rank_environment({"HOME=/root"}, job, 2);
  const std::vector<std::pair<const char*, const char*>> expected = {
      {"RANK", "2"},
      {"LOCAL_RANK", "2"},
      {"WORLD_SIZE", "3"},
      {"LOCAL_WORLD_SIZE", "3"},
      {"GROUP_RANK", "0"},
      {"GROUP_WORLD_SIZE", "1"},
      {"ROLE_RANK", "2"},
      {"ROLE_WORLD_SIZE", "3"},
      {"ROLE_NAME", "default"},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", "4321"},
      {"TORCHELASTIC_RESTART_COUNT", "0"},
      {"TORCHELASTIC_MAX_RESTARTS", "0"},
      {"TORCHELASTIC_RUN_ID", "job-7"},
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
      {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"},
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
  };
  for (const auto& [name, text] : expected) {
    EXPECT_EQ(value(environment, name), text) << name;
  }
  EXPECT_EQ(value(environment, "HOME"), "/root");
  EXPECT_EQ(value(environment, "OMP_NUM_THREADS"), "<unset>");
  EXPECT_EQ(environment.size(), expected.size() + 1);
}

TEST(RankEnvironment, CountsRanksOverAllNodes) {
  JobPlace job;
  job.ranks_per_node = 4;
  job.num_nodes = 3;
  job.node_rank = 2;
  job.first_rank = 8;
  job.world_size = 12;
  job.launcher_hosts_store = true;
  const Environment environment = rank_environment({}, job, 1);
  EXPECT_EQ(value(environment, "RANK"), "9");
  EXPECT_EQ(value(environment, "LOCAL_RANK"), "1");
  EXPECT_EQ(value(environment, "WORLD_SIZE"), "12");
  EXPECT_EQ(value(environment, "LOCAL_WORLD_SIZE"), "4");
  EXPECT_EQ(value(environment, "GROUP_RANK"), "2");
  EXPECT_EQ(value(environment, "GROUP_WORLD_SIZE"), "3");
  EXPECT_EQ(value(environment, "TORCHELASTIC_USE_AGENT_STORE"), "True");
}

TEST(RankEnvironment, GivesEachRankItsErrorFile) {
  const Environment environment = rank_environment(
      {"TORCHELASTIC_ERROR_FILE=/outer"}, JobPlace{}, 0, "/logs/0/error.json");
  EXPECT_EQ(value(environment, "TORCHELASTIC_ERROR_FILE"),
            "/logs/0/error.json");
}

TEST(RankEnvironment, ShowsEachRankItsOwnDeviceWhenAskedTo) {
  JobPlace job;
  job.ranks_per_node = 3;
  job.devices = DeviceView::own;
  const auto device = [&](const Environment& inherited, int rank) {
    return value(rank_environment(inherited, job, rank),
                 "CUDA_VISIBLE_DEVICES");
  };
  EXPECT_EQ(device({}, 2), "2");
  EXPECT_EQ(device({"CUDA_VISIBLE_DEVICES=4,GPU-b,6"}, 1), "GPU-b");
  EXPECT_EQ(device({"CUDA_VISIBLE_DEVICES=4"}, 1), "") << "there is none left";
  EXPECT_EQ(value(rank_environment({}, job, 2), "LOCAL_RANK"), "0");
  EXPECT_EQ(value(rank_environment({}, job, 2), "RANK"), "2");
}

TEST(RankEnvironment, ReplacesAllThatAnOuterLauncherLeft) {
  const Environment inherited = {"RANK=7",
                                 "WORLD_SIZE=8",
                                 "RANK=5",
                                 "TORCHELASTIC_USE_AGENT_STORE=True",
                                 "TORCHELASTIC_ERROR_FILE=/outer/error.json",
                                 "RANKING=kept"};
  const Environment environment = rank_environment(inherited, JobPlace{}, 0);
  EXPECT_EQ(std::ranges::count_if(
                environment,
                [](const auto& entry) { return entry.starts_with("RANK="); }),
            1);
  EXPECT_EQ(value(environment, "RANK"), "0");
  EXPECT_EQ(value(environment, "WORLD_SIZE"), "1");
  EXPECT_EQ(value(environment, "TORCHELASTIC_USE_AGENT_STORE"), "False");
  EXPECT_EQ(value(environment, "TORCHELASTIC_ERROR_FILE"), "<unset>");
  EXPECT_EQ(value(environment, "RANKING"), "kept");
}

TEST(RankEnvironment, LeavesTheUsersChoiceOfNcclErrorHandling) {
  const Environment environment =
      rank_environment({"TORCH_NCCL_ASYNC_ERROR_HANDLING=3"}, JobPlace{}, 0);
  EXPECT_EQ(value(environment, "TORCH_NCCL_ASYNC_ERROR_HANDLING"), "3");
}

TEST(RankEnvironment, PassesOnTheNumberOfThreads) {
  JobPlace job;
  job.num_threads = 5;
  const Environment environment = rank_environment({}, job, 0);
  EXPECT_EQ(value(environment, "OMP_NUM_THREADS"), "5");
}

TEST(ThreadsPerRank, ShareTheProcessorsEvenlyAndNeverBelowOne) {
  EXPECT_EQ(threads_per_rank({}, 2, 2), 1);
  EXPECT_EQ(threads_per_rank({}, 2, 16), 8);
  EXPECT_EQ(threads_per_rank({}, 3, 16), 5);
  EXPECT_EQ(threads_per_rank({}, 7, 2), 1);
}

TEST(ThreadsPerRank, AreLeftToTheProgramForOneRankOrWhenTheUserHasChosen) {
  EXPECT_EQ(threads_per_rank({}, 1, 16), std::nullopt);
  EXPECT_EQ(threads_per_rank({"OMP_NUM_THREADS=4"}, 2, 16), std::nullopt);
}

TEST(FindVariable, MatchesTheWholeName) {
  EXPECT_EQ(find_variable({"RANKS=1"}, "RANK"), std::nullopt);
  EXPECT_EQ(find_variable({"RANK"}, "RANK"), std::nullopt);
  EXPECT_EQ(find_variable({"RANK="}, "RANK"), "");
  EXPECT_EQ(find_variable({"A=b=c"}, "A"), "b=c");
}

}  // namespace
}  // namespace tessera::launch
