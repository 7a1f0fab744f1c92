// What a trainer's checkpoint holds while steps go on beside it.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/base/environment.h"
#include "tessera/train/token_file_writer.h"
#include "tessera/train/train.h"
#include "tests/checkpoint/block.h"
#include "tests/checkpoint_format/folder/hooked_storage.h"
#include "tests/support/temporary_folder.h"

namespace tessera::train {
namespace {

using checkpoint::HookedStorage;
using testing::TemporaryFolder;
using Words = std::vector<std::string>;

void write_tokens(const std::string& path) {
  const std::string line = "the cat sat on the mat. ";
  const std::vector<uint32_t> tokens(line.begin(), line.end());
  TokenFileWriter writer(path, {.vocab = 256});
  for (int i = 0; i < 40; ++i) writer.append(Split::train, tokens);
  writer.finish();
}

TrainConfig config_of(const TemporaryFolder& folder, const Words& more) {
  Words words = {"data.tokens=\"" + folder / "text.tok" + "\"",
                 "output.folder=\"" + folder / "run" + "\"",
                 "output.tensorboard=false",
                 "model.dim=16",
                 "model.layers=1",
                 "model.heads=2",
                 "model.ffn=24",
                 "model.seq=8",
                 "train.steps=6",
                 "train.batch=4",
                 "train.tokens_per_step=64",
                 "train.deterministic=true",
                 "optimizer.lr=1e-2",
                 "checkpoint.every=3",
                 "checkpoint.keep_latest=0"};
  words.insert(words.end(), more.begin(), more.end());
  return default_train_config(words);
}

/// Leaves the checkpoints of a run in `folder`/NAME.
void run(const TemporaryFolder& folder, const std::string& name,
         const Words& more, const TrainCalls& calls) {
  environment::disable_flight_recorder();
  const TrainConfig config = config_of(folder, more);
  run_ranks(1, [&](const World& world) { (void)train(config, world, calls); });
  std::filesystem::rename(folder / "run/checkpoints", folder / name);
}

/// The thread that writes the checkpoint of step 3 gets to its tensors after
/// the loop has taken two more steps.
class LateWriter {
 public:
  TrainCalls calls() {
    return {.stop_requested =
                [this] {
                  if (++steps_begun_ == 6) release();
                  return false;
                },
            .storage = std::make_shared<HookedStorage>(
                [this](int64_t, const std::string& path) {
                  const bool held = path.find("step-3") != path.npos &&
                                    path.ends_with(".distcp");
                  if (held) released_.wait(false);
                })};
  }

 private:
  void release() {
    released_ = true;
    released_.notify_all();
  }

  int steps_begun_ = 0;
  std::atomic<bool> released_ = false;
};

TEST(TrainerSave, HoldsTheStepThatItIsOfHoweverLateItIsWritten) {
  const std::vector<Words> ways = {
      {},
      {"train.max_norm=0"},
      {"train.max_norm=0", "train.step_in_backward=true"}};
  for (const Words& way : ways) {
    SCOPED_TRACE(&way - ways.data());
    const TemporaryFolder folder;
    write_tokens(folder / "text.tok");
    Words words = way;
    words.emplace_back("checkpoint.how=sync");
    run(folder, "want", words, {});
    LateWriter late;
    run(folder, "late", way, late.calls());
    for (const char* step : {"/step-3", "/step-6"}) {
      // All tensors are compared before the first value, and this one differs.
      EXPECT_TRUE(
          checkpoint::difference(folder / "want" + step, folder / "late" + step)
              .starts_with("trainer.config is"))
          << checkpoint::difference(folder / "want" + step,
                                    folder / "late" + step);
    }
    EXPECT_NE(
        checkpoint::difference(folder / "want/step-3", folder / "late/step-6")
            .find("other bytes"),
        std::string::npos);
  }
}

}  // namespace
}  // namespace tessera::train
