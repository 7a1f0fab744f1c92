// Saving while training goes on.
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "tessera/checkpoint/async_saver.h"
#include "tessera/checkpoint/reader.h"
#include "tests/checkpoint/block.h"
#include "tests/checkpoint_format/folder/hooked_storage.h"
#include "tests/checkpoint_format/folder/opened_storage.h"
#include "tests/support/temporary_folder.h"

namespace tessera::checkpoint {
namespace {

using testing::message_of;
using testing::TemporaryFolder;
using namespace std::chrono_literals;

void save_while_training(const TemporaryFolder& folder, Staging staging) {
  run_ranks(
      2,
      [&](const World& world) {
        Trained trained(world, 7);
        trained.step(0);
        const State state = state_of(*trained.block, *trained.optimizer);
        save(folder / "expected", state);
        AsyncSaver saver({.world = world}, staging);
        for (int step = 1; step < 6; ++step) {  // each waits for the one before
          saver.save(folder / str("step-", step), state);
          saver.before_change();
          trained.step(step);
        }
        saver.wait();
      },
      30s);
}

TEST(AsyncSaver, SavesWhatTheStateWasWhenItWasCalled) {
  const TemporaryFolder folder;
  save_while_training(folder, Staging::before_later_work);
  EXPECT_EQ(difference(folder / "expected", folder / "step-1"), "");
  EXPECT_NE(difference(folder / "expected", folder / "step-2"), "");
  EXPECT_EQ(latest(folder.path()), folder / "step-5");
  EXPECT_EQ(local_storage()->list(folder.path()).size(), 6U);
  EXPECT_EQ(
      local_storage()->list(folder / "step-5"),
      (std::vector<std::string>{".metadata", "__0_0.distcp", "__1_0.distcp",
                                "tessera_checksums.json"}));
}

TEST(AsyncSaver, SavesTheSameBesideSteps) {
  const TemporaryFolder folder;
  const TemporaryFolder other;
  save_while_training(folder, Staging::before_later_work);
  save_while_training(other, Staging::beside_steps);
  EXPECT_EQ(difference(folder / "step-5", other / "step-5"), "");
}

// The thread that writes comes to the tensors after the step.
TEST(AsyncSaver, BesideStepsSavesTheStateOfItsCallHoweverLateItIsWritten) {
  const TemporaryFolder folder;
  std::atomic<bool> stepped = false;
  const auto hold = [&](int64_t, const std::string& path) {
    if (path.ends_with(".distcp")) stepped.wait(false);
  };
  Trained trained({}, 7);
  trained.step(0);
  const State state = state_of(*trained.block, *trained.optimizer);
  save(folder / "expected", state);
  AsyncSaver saver({.storage = std::make_shared<HookedStorage>(hold)},
                   Staging::beside_steps);
  saver.save(folder / "beside", state);
  saver.before_change();
  trained.step(1);
  stepped = true;
  stepped.notify_all();
  saver.wait();
  EXPECT_EQ(difference(folder / "expected", folder / "beside"), "");
  save(folder / "later", state);
  EXPECT_NE(difference(folder / "expected", folder / "later"), "");
}

TEST(HostCopy, HoldsTensorsOfAnyDtypeAndStridesAsTheyWere) {
  const std::vector<at::Tensor> sources = {
      torch::rand({3, 5}), torch::rand({7, 2}, torch::kDouble).t(),
      torch::tensor(true), torch::rand({0, 4}),
      torch::rand({3, 2, 1}).to(torch::kBFloat16).expand({3, 2, 6})};
  std::vector<at::Tensor> expected;
  for (const at::Tensor& source : sources) expected.push_back(source.clone());
  HostCopy memory;
  const std::vector<at::Tensor> copies = memory.begin(sources);
  memory.wait();
  sources[0].zero_();
  ASSERT_EQ(copies.size(), sources.size());
  for (size_t i = 0; i < copies.size(); ++i) {
    EXPECT_TRUE(copies[i].is_contiguous()) << i;
    EXPECT_EQ(copies[i].scalar_type(), expected[i].scalar_type()) << i;
    EXPECT_TRUE(torch::equal(copies[i], expected[i])) << i;
  }
}

TEST(HostCopy, OfHostMemoryIsMadeBeforeLaterWork) {
  const at::Tensor source = torch::ones(5);
  HostCopy memory;
  const at::Tensor copy = memory.begin({source})[0];
  memory.block_later_work();
  source.zero_();
  memory.wait();
  EXPECT_EQ(copy.sum().item<float>(), 5);
}

TEST(HostCopy, KeepsItsMemoryForTheNextOne) {
  HostCopy memory;
  const void* first = memory.begin({torch::rand(1000)})[0].const_data_ptr();
  EXPECT_EQ(memory.begin({torch::rand({20, 50})})[0].const_data_ptr(), first);
  EXPECT_EQ(memory.begin({torch::rand(7)})[0].const_data_ptr(), first);
  const auto larger = memory.begin({torch::ones(70), torch::ones(5000)});
  memory.wait();
  EXPECT_EQ(larger[1].sum().item<float>(), 5000);
}

TEST(AsyncSaver, FailsOnEveryRankTheSameAtTheNextCall) {
  const TemporaryFolder folder;
  std::vector<std::string> errors(2);
  const auto fail = [](int64_t, const std::string& path) {
    if (!path.ends_with(".distcp")) return;
    throw CheckpointError("cannot write '" + path + "': no space left");
  };
  run_ranks(
      2,
      [&](const World& world) {
        Trained trained(world, 7);
        const State state = state_of(*trained.block, *trained.optimizer);
        save(folder / "step-1", state);
        SaveOptions options{.world = world};
        if (world.rank() == 1) {
          options.storage = std::make_shared<HookedStorage>(fail);
        }
        AsyncSaver saver(options);
        saver.save(folder / "step-2", state);
        errors[world.rank()] = message_of<CheckpointError>(
            [&] { saver.save(folder / "step-3", state); });
      },
      30s);
  EXPECT_EQ(errors[0], errors[1]);
  EXPECT_NE(errors[0].find("step-2' failed on rank 1: cannot write"),
            std::string::npos)
      << errors[0];
  EXPECT_EQ(local_storage()->list(folder.path()),
            std::vector<std::string>{"step-1"});
}

TEST(AsyncSaver, ASecondSaveWaitsForTheFirst) {
  const TemporaryFolder folder;
  std::atomic<int> num_early = 0;
  std::atomic<int> num_files = 0;
  const auto look = [&](int64_t, const std::string& path) {
    if (path.find("step-2") == std::string::npos) return;
    ++num_files;
    if (!local_storage()->exists(folder / "step-1/.metadata")) ++num_early;
  };
  run_ranks(
      2,
      [&](const World& world) {
        Trained trained(world, 7);
        const State state = state_of(*trained.block, *trained.optimizer);
        AsyncSaver saver(
            {.world = world, .storage = std::make_shared<HookedStorage>(look)});
        EXPECT_FALSE(saver.saving());
        saver.save(folder / "step-1", state);
        saver.save(folder / "step-2", state);
        saver.wait();
        EXPECT_FALSE(saver.saving());
      },
      30s);
  EXPECT_GT(num_files, 0);
  EXPECT_EQ(num_early, 0);
}

// While an older save of the folder is pending, loads see the older state.
TEST(AsyncSaver, LoadsDuringASaveSeeTheOlderCheckpoint) {
  const TemporaryFolder folder;
  Trained trained({}, 7);
  const State state = state_of(*trained.block);
  save(folder / "a", state);
  AsyncSaver saver;
  for (int round = 0; round < 20; ++round) {
    saver.save(folder / "a", state);
    Trained other({}, 9);
    EXPECT_NO_THROW(load(folder / "a", state_of(*other.block)));
    EXPECT_TRUE(
        torch::equal(other.block->up->weight, trained.block->up->weight));
  }
  saver.wait();
}

TEST(Load, OfASaveThatIsMeantRefusesAnother) {
  const TemporaryFolder folder;
  const Trained trained({}, 7);
  save(folder / "a", state_of(*trained.block));
  const uint64_t first = CheckpointReader(folder / "a").fingerprint();
  Trained other({}, 9);
  EXPECT_NO_THROW(load(folder / "a", state_of(*other.block), {.save = first}));
  save(folder / "a", state_of(*trained.block));
  const std::string message = message_of<CheckpointError>(
      [&] { load(folder / "a", state_of(*other.block), {.save = first}); });
  EXPECT_NE(message.find("another save has taken its place"), std::string::npos)
      << message;
}

// Rank 1 opens the folder when rank 0 has opened it and a save has ended since.
TEST(Load, OfAFolderThatIsReplacedMeanwhileIsOfOneSaveOnAllRanks) {
  const TemporaryFolder folder;
  std::promise<void> opened;
  run_ranks(
      2,
      [&](const World& world) {
        for (const int seed : {7, 900}) {
          const Trained trained(world, seed);
          save(folder / str("seed-", seed), state_of(*trained.block));
        }
        int num_opened = 0;
        const auto first_of_rank_1 = [&](const std::string& name) {
          if (world.rank() != 1 || name != ".metadata" || ++num_opened > 1) {
            return;
          }
          ASSERT_EQ(opened.get_future().wait_for(20s),
                    std::future_status::ready);
          local_storage()->exchange_folders(folder / "seed-900",
                                            folder / "seed-7");
        };
        // Which is opened once more to see that nothing has changed.
        const auto last_of_rank_0 = [&](const std::string& name) {
          if (world.rank() != 0 || name != ".metadata" || ++num_opened != 2) {
            return;
          }
          opened.set_value();
        };
        const Trained got(world, 1), want(world, 900);
        load(folder / "seed-7", state_of(*got.block),
             {.storage = std::make_shared<OpenedStorage>(first_of_rank_1,
                                                         last_of_rank_0)});
        EXPECT_TRUE(local(got.block->parameters()[0])
                        .equal(local(want.block->parameters()[0])));
        EXPECT_GE(num_opened, 3);
      },
      30s);
}

}  // namespace
}  // namespace tessera::checkpoint
