// Which checkpoint is the latest, and which are kept.
#include "tessera/checkpoint/folders.h"

#include <gtest/gtest.h>

#include "tests/checkpoint_format/folder/thread_peers.h"
#include "tests/support/temporary_folder.h"

namespace tessera::checkpoint {
namespace {

using testing::TemporaryFolder;

TEST(Folders, AreOrderedByTheirStep) {
  EXPECT_EQ(step_of("step-100"), 100);
  EXPECT_EQ(step_of("100"), 100);
  EXPECT_EQ(step_of("best"), -1);
  const TemporaryFolder folder;
  for (const char* name : {"step-9", "step-100", "best"}) {
    save_small(folder / name, {}, {});
  }
  EXPECT_EQ(latest(folder.path()), folder / "step-100");
  EXPECT_EQ(list_checkpoints(folder.path()).size(), 3U);
  EXPECT_EQ(latest(folder / "nothing"), std::nullopt);
}

TEST(Folders, UnfinishedAndDamagedOnesAreNeverTheLatest) {
  const TemporaryFolder folder;
  save_small(folder / "step-1", {}, {});
  for (const char* name : {"step-2", "step-3", "step-4", ".step-5.saving-1"}) {
    save_small(folder / "step-9", {}, {});
    std::filesystem::rename(folder / "step-9", folder / name);
  }
  std::filesystem::remove(folder / "step-2/.metadata");
  testing::write_bytes(folder / "step-3/.metadata", "");
  testing::write_bytes(folder / "step-4/__0_0.distcp", "cut");
  EXPECT_EQ(latest(folder.path()), folder / "step-1");
}

TEST(Folders, RetentionKeepsTheLastAndEveryNth) {
  const std::vector<int64_t> steps = {100, 200, 300, 400, 500};
  using Steps = std::vector<int64_t>;
  EXPECT_EQ(steps_to_remove(steps, {}), Steps{});
  EXPECT_EQ(steps_to_remove(steps, {.keep_latest = 2}), (Steps{100, 200, 300}));
  EXPECT_EQ(steps_to_remove(steps, {.keep_latest = 1, .keep_every = 200}),
            (Steps{100, 300}));
  EXPECT_EQ(steps_to_remove(steps, {.keep_latest = 9}), Steps{});
  EXPECT_THROW((void)steps_to_remove(steps, {.keep_latest = -1}),
               InvalidArgument);
}

TEST(Folders, PruneRemovesWhatRetentionLetsGoAndNothingElse) {
  const TemporaryFolder folder;
  for (const char* name : {"step-1", "step-2", "step-3", "step-5", "best"}) {
    save_small(folder / name, {}, {});
  }
  std::filesystem::create_directory(folder / "step-4");  // no checkpoint
  testing::write_bytes(folder / "step-5/__0_0.distcp", "cut");
  EXPECT_EQ(prune(folder.path(), {.keep_latest = 2}),
            std::vector<std::string>{folder / "step-1"});
  EXPECT_EQ(local_storage()->list(folder.path()),
            (std::vector<std::string>{"best", "step-2", "step-3", "step-4",
                                      "step-5"}));
}

}  // namespace
}  // namespace tessera::checkpoint
