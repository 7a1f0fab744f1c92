// Replicas (HSDP) and parameters cut along other dims than 0: one checkpoint,
// whatever the layout that wrote it.
#include <gtest/gtest.h>

#include "tessera/checkpoint/reader.h"
#include "tessera/state/get_state_dict.h"
#include "tessera/state/set_state_dict.h"
#include "tests/checkpoint/block.h"
#include "tests/support/temporary_folder.h"

namespace tessera::checkpoint {
namespace {

using testing::TemporaryFolder;
using namespace std::chrono_literals;

constexpr auto kDeadline = 30s;

std::optional<Shard> along_last_dim(const at::Tensor&) { return Shard{-1}; }

struct Layout {
  const char* name;
  int ranks;
  Trained::Cut cut;
};

DeviceMesh hybrid(const World& world, int64_t replicas) {
  return init_device_mesh(world, {.shape = {replicas, world.size() / replicas},
                                  .axes = {"replicate", "shard"}});
}

std::vector<Layout> layouts() {
  const auto columns = [](const World& world) {
    return FullyShardOptions{.mesh = init_device_mesh(world),
                             .shard_placement_fn = along_last_dim};
  };
  const auto replicas = [](const World& world) {
    return FullyShardOptions{.mesh = hybrid(world, 2)};
  };
  const auto both = [](const World& world) {
    return FullyShardOptions{.mesh = hybrid(world, 2),
                             .shard_placement_fn = along_last_dim};
  };
  return {{"rows", 3, Trained::along_rows}, {"columns", 2, columns},
          {"columns", 3, columns},          {"replicas", 4, replicas},
          {"whole replicas", 2, replicas},  {"replicas of columns", 4, both}};
}

TEST(Layouts, OfEveryKindWriteTheSameCheckpointAndReadIt) {
  const TemporaryFolder folder;
  {
    Trained plain({}, 7);
    for (int step = 0; step < 2; ++step) plain.step(step);
    save(folder / "rows", state_of(*plain.block, *plain.optimizer));
  }
  int number = 0;
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(str(layout.name, " on ", layout.ranks));
    const std::string again = folder / str("again-", number++);
    run_ranks(
        layout.ranks,
        [&](const World& world) {
          Trained other(world, 100, layout.cut);
          State state = state_of(*other.block, *other.optimizer);
          EXPECT_TRUE(load(folder / "rows", state).missing.empty());
          save(again, state);
        },
        kDeadline);
    EXPECT_EQ(difference(folder / "rows", again), "");
  }
}

TEST(Layouts, OfEveryKindStopAndResumeAsIfNeverStopped) {
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(str(layout.name, " on ", layout.ranks));
    const TemporaryFolder folder;
    run_ranks(
        layout.ranks,
        [&](const World& world) {
          Trained never(world, 7, layout.cut);
          never.step(0);
          save(folder / "step-1", state_of(*never.block, *never.optimizer));
          never.step(1);
          save(folder / "never", state_of(*never.block, *never.optimizer));
          Trained resumed(world, 55, layout.cut);
          load(folder / "step-1", state_of(*resumed.block, *resumed.optimizer));
          resumed.step(1);
          save(folder / "resumed",
               state_of(*resumed.block, *resumed.optimizer));
        },
        kDeadline);
    EXPECT_EQ(difference(folder / "never", folder / "resumed"), "");
  }
}

TEST(Layouts, GiveAndTakeTheFullStateDictOfRankZero) {
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(str(layout.name, " on ", layout.ranks));
    run_ranks(
        layout.ranks,
        [&](const World& world) {
          Trained from(world, 7, layout.cut);
          const StateDict full =
              get_model_state_dict(*from.block, {.full_state_dict = true});
          Trained whole({}, 7);
          for (const StateEntry& entry : full) {
            const auto& tensor = std::get<StateTensor>(entry.leaf);
            const auto key = key_of(entry.path);
            const auto* plain = whole.block->named_parameters().find(key);
            if (plain == nullptr) continue;  // a buffer
            EXPECT_TRUE(torch::equal(tensor.local, *plain)) << key;
          }
          Trained to(world, 55, layout.cut);
          set_model_state_dict(
              *to.block, world.rank() == 0 ? full : StateDict(),
              {.full_state_dict = true, .broadcast_from_rank0 = true});
          for (size_t i = 0; i < to.block->parameters().size(); ++i) {
            EXPECT_TRUE(torch::equal(local(to.block->parameters()[i]),
                                     local(from.block->parameters()[i])));
          }
        },
        kDeadline);
  }
}

}  // namespace
}  // namespace tessera::checkpoint
