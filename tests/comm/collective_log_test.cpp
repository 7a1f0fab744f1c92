// What the log of collectives remembers, and what its hash tells apart.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <numeric>
#include <set>

#include "tessera/comm/backend_factory.h"
#include "tessera/comm/collective_log.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/world.h"

namespace tessera {
namespace {

constexpr int kMaxRanks = 4;

std::vector<int> all_ranks(const World& world) {
  std::vector<int> ranks(world.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

TEST(CollectiveLog, HashIsEqualOnAllRanksUntilOneIssuesAnotherCall) {
  for (int world_size = 2; world_size <= kMaxRanks; ++world_size) {
    run_ranks(world_size, [](const World& world) {
      auto comm = world.make_communicator("all", all_ranks(world));
      auto own = world.make_communicator("own" + std::to_string(world.rank()),
                                         {world.rank()});
      const auto distinct_hashes = [&] {
        const auto all = comm->exchange(std::to_string(world.log().hash()), {});
        return std::set<std::string>(all.begin(), all.end()).size();
      };
      auto tensor = torch::ones({3});
      comm->all_reduce(tensor, ReduceOp::sum, {.unit = "a", .op = "x"}).wait();
      EXPECT_EQ(distinct_hashes(), 1u);
      // What caused a call may differ from rank to rank.
      comm->all_reduce(tensor, ReduceOp::sum,
                       {.unit = "a", .op = world.rank() == 0 ? "x" : "y"})
          .wait();
      EXPECT_EQ(distinct_hashes(), 1u);
      if (world.rank() == 1) {
        own->all_reduce(tensor, ReduceOp::sum, {.unit = "a"}).wait();
      }
      EXPECT_EQ(distinct_hashes(), 2u);
    });
  }
}

// As of a capture that a rank had to break off.
TEST(CollectiveLog, ForgetsCallsThatWereNeverMade) {
  CollectiveLog log;
  const auto enter = [&](std::string_view communicator) {
    log.finish(log.enter(communicator, "all_gather", {.unit = "u"}, 8,
                         torch::kFloat32));
  };
  enter("gather");
  const uint64_t hash = log.hash();
  const auto hashes = log.hashes();
  enter("gather");
  enter("reduce");
  EXPECT_NE(log.hash(), hash);
  log.put_back(hashes);
  EXPECT_EQ(log.hash(), hash);
}

TEST(CommunicatorName, TellsItsPurposeOnEveryMeshOfAWorld) {
  EXPECT_EQ(purpose_of("dp_shard/gather"), "gather");
  EXPECT_EQ(purpose_of("dp_shard/control#12"), "control");
  EXPECT_EQ(purpose_of("state dict 3"), "");
  EXPECT_TRUE(moves_numbers_only("all/norm#1"));
  EXPECT_FALSE(moves_numbers_only("dp/reduce#1"));
}

TEST(CollectiveLog, HashDependsOnEachPartOfACall) {
  const auto hash = [](std::string_view communicator, std::string_view kind,
                       std::string_view unit, int64_t numel,
                       c10::ScalarType dtype, const CallTerms& terms = {}) {
    CollectiveLog log;
    log.enter(communicator, kind, {.unit = unit}, numel, dtype, terms);
    return log.hash();
  };
  const std::set<uint64_t> hashes = {
      CollectiveLog().hash(),
      hash("c", "k", "u", 4, torch::kFloat32),
      hash("d", "k", "u", 4, torch::kFloat32),
      hash("c", "l", "u", 4, torch::kFloat32),
      hash("c", "k", "v", 4, torch::kFloat32),
      hash("c", "k", "u", 5, torch::kFloat32),
      hash("c", "k", "u", 4, torch::kInt32),
      hash("ck", "", "u", 4, torch::kFloat32),
      hash("c", "k", "u", 4, torch::kFloat32, {.reduction = "sum"}),
      hash("c", "k", "u", 4, torch::kFloat32, {.reduction = "max"}),
      hash("c", "k", "u", 4, torch::kFloat32, {.root = 0}),
      hash("c", "k", "u", 4, torch::kFloat32, {.root = 1})};
  EXPECT_EQ(hashes.size(), 12u);
}

TEST(CollectiveLog, KeepsTheLastEntriesAndTheirEnds) {
  CollectiveLog log;
  EXPECT_EQ(log.last().sequence, 0u);
  EXPECT_EQ(log.describe(), "no collective yet");
  const auto sequence =
      log.enter("dp/gather", "all_gather",
                {.unit = "layers.1", .phase = "backward", .op = "aten::mm"}, 10,
                torch::kBFloat16);
  EXPECT_EQ(
      log.describe(),
      "after issuing all_gather #1 on dp/gather, unit 'layers.1', backward, "
      "aten::mm, 20 bytes");
  log.wait(sequence);
  log.enter_unhashed("w", "barrier", {});
  EXPECT_EQ(log.position().kind, "all_gather");
  EXPECT_EQ(log.describe().substr(0, 21), "waiting in all_gather");
  log.finish(sequence);
  EXPECT_EQ(log.position().kind, "barrier");
  EXPECT_TRUE(log.at(sequence).finished);
  for (int i = 0; i < 100; ++i) log.enter_unhashed("w", "barrier", {});
  EXPECT_EQ(log.at(sequence).sequence, 0u);
  EXPECT_EQ(log.at(101).kind, "barrier");
  log.finish(sequence);  // long gone: must not touch the entry in its place
  EXPECT_FALSE(log.at(65).finished);
  EXPECT_EQ(log.last().index, 101);
}

TEST(CollectiveLog, KeepsTheTimesOfACallOfItsWaitAndOfItsEnd) {
  CollectiveLog log;
  const auto sequence = log.enter_unhashed("w", "barrier", {});
  const auto issued = log.at(sequence);
  EXPECT_EQ(issued.since(), issued.called);
  log.wait(sequence);
  const auto waited = log.at(sequence);
  EXPECT_EQ(waited.called, issued.called);
  EXPECT_GE(waited.started, issued.called);
  EXPECT_EQ(waited.since(), waited.started);
  log.wait(sequence);  // a second round of the same call
  EXPECT_EQ(log.at(sequence).started, waited.started);
  log.finish(sequence);
  const auto ended = log.at(sequence);
  EXPECT_GE(ended.ended, waited.started);
  EXPECT_EQ(ended.since(), ended.ended);
  log.finish(sequence);  // the end of its handle
  EXPECT_EQ(log.at(sequence).ended, ended.ended);
}

}  // namespace
}  // namespace tessera
