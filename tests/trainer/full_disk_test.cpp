// A disk that becomes full while a run saves, and a save that fails meanwhile.
#include <gtest/gtest.h>

#include <string>

#include "tests/trainer/small_disk.h"
#include "tests/trainer/trainer_program.h"

namespace tessera::train {
namespace {

class FullDisk : public Program {
 protected:
  static constexpr int64_t kPage = 4096;

  [[nodiscard]] Words words(const std::string& how, int64_t steps) const {
    return train_words({"--resume", "auto", "--checkpoint.how=" + how,
                        "--checkpoint.keep_best=false",
                        str("--train.steps=", steps)});
  }

  static void expect_clear(const Ended& ended, const std::string& what) {
    EXPECT_EQ(ended.code, 20) << what << "\n" << ended.error;
    EXPECT_EQ(count(ended.error,
                    "tessera train: the checkpoint was not saved; "
                    "those before it are whole."),
              1)
        << what << "\n"
        << ended.error;
    EXPECT_EQ(count(ended.error, "No space left on device"), 1) << what << "\n"
                                                                << ended.error;
  }
};

// However little room there is: none, or enough for some of the files.
TEST_F(FullDisk, WhileSavingLeavesTheCheckpointBeforeAndNothingElse) {
  const SmallDisk disk(path("run/checkpoints"), 1024 * kPage);
  if (!disk.error().empty()) GTEST_SKIP() << "no tmpfs here: " << disk.error();
  const int64_t empty = disk.free_bytes();
  ASSERT_EQ(run(words("sync", 4)).code, 0);
  const int64_t one = empty - disk.free_bytes();  // what a checkpoint takes
  ASSERT_GT(one, kPage);
  for (const char* how : {"async", "sync"}) {
    for (const int64_t room : {int64_t{0}, kPage, one / 2, one - kPage}) {
      const std::string what = str(how, ", ", room, " bytes free");
      disk.leave_free(room);
      const Ended ended = run(words(how, 6));
      expect_clear(ended, what);
      EXPECT_EQ(names_in("run/checkpoints"), (Names{"filler", "step-4"}))
          << what;
    }
  }
  disk.remove_filler();
  EXPECT_EQ(run({TESSERA_PROGRAM, "checkpoint", "verify",
                 path("run/checkpoints/step-4")})
                .code,
            0);
  EXPECT_EQ(run(words("async", 6)).code, 0) << "with room again";
  EXPECT_EQ(names_in("run/checkpoints"), (Names{"step-4", "step-6"}));
  EXPECT_EQ(steps_of("run"), steps_to(6));
}

// A rank without room cannot leave a note for the others either.
TEST_F(FullDisk, OfAllRanksEndsTheJobAtOnce) {
  const SmallDisk disk(path("run/checkpoints"), 1024 * kPage);
  if (!disk.error().empty()) GTEST_SKIP() << "no tmpfs here: " << disk.error();
  ASSERT_EQ(run(on_ranks(2, words("sync", 4))).code, 0);
  for (const int64_t room : {0, 1, 3}) {
    disk.leave_free(room * kPage);
    const Ended ended = run(on_ranks(2, words("async", 6)));
    expect_clear(ended, str(room, " pages"));
    EXPECT_EQ(names_in("run/checkpoints"), (Names{"filler", "step-4"})) << room;
  }
}

TEST_F(FullDisk, AFailedSaveEndsTheRunBeforeItsNextSave) {
  std::ofstream(path("train.toml"), std::ios::app)
      << "[checkpoint]\nevery = 500\nkeep_best = false\n";
  const Ended ended =
      run(on_ranks(2, {KILLED_SAVE, path("train.toml"), "500", "refused",
                       "--train.steps=2000", "--evaluation.every=0"}));
  EXPECT_EQ(ended.code, 20) << ended.error;
  EXPECT_EQ(count(ended.error, "the checkpoint was not saved"), 1)
      << ended.error;
  EXPECT_EQ(count(ended.error, "rank 1: '"), 1) << ended.error;
  EXPECT_EQ(count(ended.error, "__1_0.distcp': refused by the test"), 1)
      << ended.error;
  EXPECT_EQ(count(ended.error, "run/checkpoints/step-500'"), 1) << ended.error;
  EXPECT_TRUE(names_in("run/checkpoints").empty());
  // The first step that hears of it is the last.
  EXPECT_GE(steps_of("run").back(), 500);
  EXPECT_LT(steps_of("run").back(), 1000);
}

}  // namespace
}  // namespace tessera::train
