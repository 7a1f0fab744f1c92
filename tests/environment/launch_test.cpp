#include "tessera/comm/launch.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

using environment::Launch;

Launch two_ranks() {
  Launch launch;
  launch.rank = 1;
  launch.world_size = 2;
  launch.master_addr = "127.0.0.1";
  launch.master_port = 29500;
  return launch;
}

std::string refusal(const Launch& launch) {
  try {
    (void)find_job(launch);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST(FindJob, IsOneProcessWithoutAnyVariable) {
  const Job job = find_job({});
  EXPECT_EQ(job.source, "one process");
  EXPECT_EQ(job.rank, 0);
  EXPECT_EQ(job.world_size, 1);
}

TEST(FindJob, IgnoresAMasterAddressLeftInTheShell) {
  Launch launch;
  launch.master_addr = "node-0";
  launch.master_port = 1;
  EXPECT_EQ(find_job(launch).source, "one process");
}

TEST(FindJob, TakesRankAndWorldSize) {
  const Job job = find_job(two_ranks());
  EXPECT_EQ(job.source, "RANK and WORLD_SIZE");
  EXPECT_EQ(job.rank, 1);
  EXPECT_EQ(job.world_size, 2);
  EXPECT_EQ(job.local_rank, std::nullopt);
  EXPECT_EQ(job.master_addr, "127.0.0.1");
  EXPECT_EQ(job.master_port, 29500);
  EXPECT_FALSE(job.agent_hosts_store);
}

TEST(FindJob, KnowsTorchrunAndKeepsRestartsApart) {
  Launch launch = two_ranks();
  launch.local_rank = 1;
  launch.local_world_size = 2;
  launch.run_id = "run";
  launch.restart_count = 3;
  launch.agent_hosts_store = true;
  const Job job = find_job(launch);
  EXPECT_EQ(job.source, "torchrun");
  EXPECT_EQ(job.local_rank, 1);
  EXPECT_TRUE(job.agent_hosts_store);
  launch.restart_count = 4;
  EXPECT_NE(find_job(launch).key_prefix, job.key_prefix);
  launch.restart_count = 3;
  launch.run_id = "another";
  EXPECT_NE(find_job(launch).key_prefix, job.key_prefix);
}

TEST(FindJob, NeedsNoMasterForOneRank) {
  Launch launch;
  launch.rank = 0;
  launch.world_size = 1;
  EXPECT_EQ(find_job(launch).world_size, 1);
}

TEST(FindJob, NamesTheHalfThatIsMissing) {
  Launch launch;
  launch.rank = 3;
  EXPECT_TRUE(
      contains(refusal(launch), "WORLD_SIZE is unset, though RANK is 3"));
  launch = {};
  launch.world_size = 4;
  EXPECT_TRUE(
      contains(refusal(launch), "RANK is unset, though WORLD_SIZE is 4"));
  launch = {};
  launch.local_rank = 1;
  EXPECT_TRUE(
      contains(refusal(launch), "RANK is unset, though LOCAL_RANK is 1"));
  launch = two_ranks();
  launch.master_addr.reset();
  EXPECT_TRUE(contains(refusal(launch), "MASTER_ADDR is unset"));
  launch = two_ranks();
  launch.master_port.reset();
  EXPECT_TRUE(contains(refusal(launch), "MASTER_PORT is unset"));
}

TEST(FindJob, NamesTheNumberThatCannotBe) {
  const auto with = [](auto change) {
    Launch launch = two_ranks();
    launch.local_world_size = 2;
    launch.local_rank = 0;
    change(launch);
    return refusal(launch);
  };
  EXPECT_EQ(with([](Launch&) {}), "");
  EXPECT_TRUE(contains(with([](Launch& l) { l.rank = 2; }),
                       "RANK is 2; expected 0 to 1. WORLD_SIZE is 2"));
  EXPECT_TRUE(contains(with([](Launch& l) { l.rank = -1; }), "RANK is -1"));
  EXPECT_TRUE(
      contains(with([](Launch& l) { l.world_size = 0; }), "WORLD_SIZE is 0"));
  EXPECT_TRUE(contains(with([](Launch& l) { l.world_size = int64_t{1} << 40; }),
                       "WORLD_SIZE is"));
  EXPECT_TRUE(
      contains(with([](Launch& l) { l.local_rank = 2; }), "LOCAL_RANK is 2"));
  EXPECT_TRUE(contains(with([](Launch& l) { l.local_world_size = 3; }),
                       "LOCAL_WORLD_SIZE is 3"));
  EXPECT_TRUE(
      contains(with([](Launch& l) { l.master_port = 0; }), "MASTER_PORT is 0"));
  EXPECT_TRUE(contains(with([](Launch& l) { l.master_port = 70000; }),
                       "MASTER_PORT is 70000"));
}

TEST(IsLoopback, MeansThisMachineAlone) {
  for (const char* address : {"localhost", "127.0.0.1", "127.1.2.3", "::1"}) {
    EXPECT_TRUE(is_loopback(address)) << address;
  }
  for (const char* address : {"", "node-0", "10.0.0.1", "localhost.example"}) {
    EXPECT_FALSE(is_loopback(address)) << address;
  }
}

}  // namespace
}  // namespace tessera
