// The keys of a training config, frozen; and the shape of a step.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/train/config_changes.h"
#include "tessera/train/failure.h"
#include "tessera/train/step_shape.h"
#include "tessera/train/train_config.h"
#include "tests/support/temporary_folder.h"

namespace tessera::train {
namespace {

using testing::TemporaryFolder;
using Words = std::vector<std::string>;

std::string read(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

template <class Run>
std::string message_of(Run&& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(TrainConfig, KeysDefaultsAndTheirWordsAreThoseOfTheGoldenFile) {
  EXPECT_EQ(explain_keys(default_train_config().toml),
            read(TRAINER_TESTS "/config_golden.toml"))
      << "A change that users must know: put the output of tessera train "
         "--print-config there, and a line in CHANGELOG.md.";
}

TEST(TrainConfig, WhatIsPrintedReadsBackAsTheSame) {
  const Words overrides = {"data.tokens=some.tok", "model.heads=2",
                           "train.seed=7", "schedule.decay=linear",
                           "shard.reshard=2"};
  const auto config = default_train_config(overrides);
  const TemporaryFolder folder;
  const std::string path = folder / "config.toml";
  std::ofstream(path) << explain_keys(config.toml);
  EXPECT_EQ(read_train_config(path).toml, config.toml);
}

TEST(TrainConfig, TheExamplesAreValid) {
  int examples = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(EXAMPLE_CONFIGS)) {
    EXPECT_NO_THROW((void)read_train_config(entry.path().string()))
        << entry.path();
    ++examples;
  }
  EXPECT_EQ(examples, 3);
}

TEST(TrainConfig, APresetGivesTheModelAndKeysChangeIt) {
  const auto config =
      default_train_config(Words{"model.preset=gpt2-124m", "model.layers=2"});
  EXPECT_EQ(config.model.architecture, Architecture::gpt2);
  EXPECT_EQ(config.model.dim, 768);
  EXPECT_EQ(config.model.layers, 2);
  EXPECT_EQ(config.train.batch, 8);
}

TEST(TrainConfig, KeyHeadsFollowHeadsUnlessGiven) {
  EXPECT_EQ(default_train_config(Words{"model.heads=8"}).model.kv_heads, 8);
  EXPECT_EQ(default_train_config(Words{"model.heads=8", "model.kv_heads=2"})
                .model.kv_heads,
            2);
}

TEST(TrainConfig, AWrongKeyIsNamedWithTheNearest) {
  const auto message =
      message_of([] { (void)default_train_config(Words{"train.stepz=3"}); });
  EXPECT_NE(message.find("train.stepz"), std::string::npos) << message;
  EXPECT_NE(message.find("train.steps"), std::string::npos) << message;
}

TEST(TrainConfig, ValuesThatDoNotGoTogetherAreRefused) {
  for (const Words& words :
       {Words{"shard.reduce_dtype=bfloat16"}, Words{"model.heads=3"},
        Words{"schedule.warmup_steps=5000"}, Words{"schedule.decay=wsd"},
        Words{"model.preset=giant"}, Words{"train.steps=0"},
        Words{"model.dropout=1"}, Words{"checkpoint.every=-1"}}) {
    EXPECT_THROW((void)default_train_config(words), InvalidArgument)
        << words[0];
  }
}

/// What reading these lines says, without the path of their file.
std::string refusal_of(const std::string& toml, const Words& overrides = {}) {
  const TemporaryFolder folder;
  const std::string path = folder / "wrong.toml";
  std::ofstream(path) << "[data]\ntokens = \"some.tok\"\n" << toml;
  std::string message =
      message_of([&] { (void)read_train_config(path, overrides); });
  if (message.starts_with(path)) message = message.substr(path.size());
  return message;
}

TEST(TrainConfig, AScheduleThatCannotBeIsSaidInKeysOfTheConfig) {
  EXPECT_EQ(refusal_of("[train]\nsteps = 10\n[schedule]\nwarmup_steps = 20\n"),
            ":6: schedule.warmup_steps is 20 and schedule.decay_steps 0, which "
            "do not fit in train.steps, 10; give fewer of them, or more "
            "train.steps.");
  EXPECT_EQ(refusal_of("[schedule]\nwarmup_steps = 20\n", {"train.steps=10"}),
            ":4: schedule.warmup_steps is 20 and schedule.decay_steps 0, which "
            "do not fit in train.steps, 10; give fewer of them, or more "
            "train.steps.");
  EXPECT_EQ(refusal_of("[schedule]\ndecay = \"wsd\"\n"),
            ":4: schedule.decay_steps is 0, but schedule.decay is wsd; give "
            "the steps of its decay, 1 or more.");
  EXPECT_EQ(refusal_of("", {"schedule.decay_steps=5"}),
            "command line: schedule.decay_steps is 5, which only "
            "schedule.decay = \"wsd\" has; give 0, or that decay.");
}

TEST(TrainConfig, AModelThatCannotBeIsSaidWithItsLine) {
  EXPECT_EQ(refusal_of("[model]\ndim = 128\nheads = 3\n").substr(0, 22),
            ":5: model.heads is 3 a");
  EXPECT_EQ(refusal_of("[model]\npreset = \"giant\"\n").substr(0, 34),
            ":4: there is no model preset 'gian");
  EXPECT_EQ(refusal_of("[model]\narchitecture = \"gpt2\"\nrecompute = "
                       "\"block\"\n"),
            ":5: model.recompute is for Llama-type models: a GPT-2 model keeps "
            "all activations; give \"none\".");
  EXPECT_EQ(refusal_of("[model]\narchitecture = \"gpt2\"\n"
                       "offload_blocks = 1\n"),
            ":5: model.offload_blocks is for Llama-type models: a GPT-2 model "
            "keeps all activations; give 0.");
  EXPECT_EQ(refusal_of("[model]\nlayers = 4\nrecompute = \"block\"\n"
                       "selective_last = 1\noffload_blocks = 4\n"),
            ":7: model.offload_blocks is 4; give 0 to 3, the blocks that "
            "model.selective_last leaves.");
  // Of what is not in the file, the key that is.
  EXPECT_EQ(refusal_of("[model]\ndim = 30\n").substr(0, 18),
            ":4: model.heads is");
}

TEST(TrainConfig, TheLayoutIsReadFromItsKeys) {
  const ShardConfig how =
      default_train_config(
          Words{"shard.replicas=2", "shard.reshard=4", "shard.prefetch=1",
                "shard.gather_dtype=float8", "shard.offload=pageable",
                "shard.backward_overlap=tight"})
          .shard;
  EXPECT_EQ(how.replicas, 2);
  EXPECT_EQ(how.reshard_ranks, 4);
  EXPECT_EQ(how.prefetch, 1);
  EXPECT_EQ(how.gather_dtype, GatherDtype::float8);
  EXPECT_EQ(how.offload, Offload::pageable);
  EXPECT_EQ(how.backward_overlap, BackwardOverlap::tight);
  const ShardConfig copied =
      default_train_config(
          Words{"shard.param_dtype=bfloat16", "shard.gather_copy=kept"})
          .shard;
  EXPECT_EQ(copied.gather_copy, CopyForGathers::kept);
  const ShardConfig always =
      default_train_config(Words{"shard.reshard=always"}).shard;
  EXPECT_EQ(always.reshard, ReshardPolicy::always);
  EXPECT_EQ(always.reshard_ranks, 0);
  EXPECT_FALSE(always.prefetch);
}

TEST(TrainConfig, ALayoutThatCannotBeIsSaidInOneSentence) {
  EXPECT_EQ(refusal_of("[shard]\nreshard = \"sometimes\"\n"),
            ":4: shard.reshard is 'sometimes'; give one of: auto, always, "
            "never, or an integer.");
  EXPECT_EQ(refusal_of("[shard]\nreshard = 0\n"),
            ":4: shard.reshard is 0; give 1 or more.");
  EXPECT_EQ(refusal_of("[shard]\nreplicas = 0\n"),
            ":4: shard.replicas is 0; give 1 or more.");
  EXPECT_EQ(refusal_of("", {"shard.prefetch=-1"}),
            "command line: shard.prefetch is -1; give 0 or more.");
  EXPECT_EQ(refusal_of("", {"shard.prefetch=all"}),
            "command line: shard.prefetch is 'all'; give one of: auto, or an "
            "integer.");
  EXPECT_EQ(refusal_of("", {"shard.offload=on"}),
            "command line: shard.offload is 'on'; did you mean 'off'? It "
            "takes: off, pinned, pageable.");
  EXPECT_EQ(refusal_of("", {"shard.gather_dtype=float9"}),
            "command line: shard.gather_dtype is 'float9'; did you mean "
            "'float8'? It takes: param_dtype, float8.");
  for (const Words& more :
       {Words{"shard.param_dtype=float32"},
        Words{"shard.param_dtype=bfloat16", "shard.gather_dtype=float8"},
        Words{"shard.param_dtype=bfloat16", "shard.offload=pinned"}}) {
    Words words = more;
    words.push_back("shard.gather_copy=kept");
    EXPECT_NE(refusal_of("", words).find("gathers would not send the copy"),
              std::string::npos);
  }
  for (const char* key : {"replicas=2", "reshard=2", "prefetch=1",
                          "backward_overlap=tight", "gather_copy=kept"}) {
    const Words words = {"shard.strategy=replicate",
                         "shard.param_dtype=bfloat16", str("shard.", key)};
    EXPECT_NE(refusal_of("", words).find("shard.strategy is replicate, where "),
              std::string::npos)
        << key << refusal_of("", words);
  }
}

TEST(TrainConfig, AGraphNeedsAnOptimizerOnTheDevice) {
  EXPECT_EQ(
      refusal_of("[optimizer]\nname = \"torch_adamw\"\n", {"train.graph=on"}),
      "command line: train.graph is set and optimizer.name is "
      "torch_adamw, which counts its steps on the host, where a graph "
      "does not come; use adamw.");
  EXPECT_NE(refusal_of("", {"train.graph=if_possible", "shard.offload=pinned"})
                .find("shard.offload too"),
            std::string::npos);
}

TEST(TrainConfig, AStepInsideOfBackwardHasNoNormAndNoSecondThoughts) {
  const std::string on = "train.step_in_backward=true";
  const std::string no_norm = "train.max_norm=0";
  EXPECT_TRUE(default_train_config(Words{on, no_norm}).train.step_in_backward);
  EXPECT_EQ(refusal_of("", {on}),
            "command line: train.step_in_backward is on and train.max_norm is "
            "above 0, but clipping needs all gradients before the first step; "
            "set it to 0.");
  EXPECT_NE(refusal_of("", {on, no_norm, "train.nonfinite=skip"})
                .find("train.nonfinite is skip"),
            std::string::npos);
  EXPECT_NE(refusal_of("", {on, no_norm, "optimizer.name=torch_adamw"})
                .find("optimizer.name is torch_adamw"),
            std::string::npos);
}

TEST(TrainConfig, StepsOfATraceAreTheFirstAndTheLast) {
  const auto profile =
      default_train_config(Words{"profile.steps=10:13"}).profile;
  EXPECT_EQ(profile.first, 10);
  EXPECT_EQ(profile.last, 13);
  for (const char* wrong : {"10", "13:10", "0:3", "a:b", "1:2:3", "1:"}) {
    EXPECT_EQ(refusal_of("", {str("profile.steps=", wrong)}),
              str("command line: profile.steps is \"", wrong,
                  "\"; give the first and the last step, as in \"10:13\"."))
        << wrong;
  }
}

TEST(ShardShape, IsThatOfReplicasAmongAllRanks) {
  EXPECT_EQ(shard_shape({.replicas = 2}, 6),
            (ShardShape{.replicas = 2, .ranks = 3}));
  EXPECT_EQ(shard_shape({}, 6), (ShardShape{.replicas = 1, .ranks = 6}));
  EXPECT_EQ(message_of([] { (void)shard_shape({.replicas = 4}, 6); }),
            "shard.replicas is 4, which does not divide 6 ranks; give a "
            "number that does.");
  EXPECT_EQ(message_of([] {
              (void)shard_shape({.reshard_ranks = 2, .replicas = 2}, 6);
            }),
            "shard.reshard is 2, which does not divide the 3 ranks that hold "
            "one copy of the model; give a number that does, or \"auto\".");
}

TEST(ConfigChanges, AreTheKeysThatMatterWithBothValues) {
  const auto before = default_train_config(Words{"train.batch=4"});
  const auto now = default_train_config(
      Words{"train.batch=8", "optimizer.lr=2e-3", "model.dim=64",
            "model.ffn=64", "output.folder=other", "data.tokens=more.tok",
            "checkpoint.every=7", "schedule.decay=linear"});
  EXPECT_EQ(config_changes(before.toml, before.toml),
            std::vector<ConfigChange>{});
  EXPECT_EQ(
      config_changes(before.toml, now.toml),
      (std::vector<ConfigChange>{{"model.dim", "128", "64"},
                                 {"model.ffn", "352", "64"},
                                 {"optimizer.lr", "0.001", "0.002"},
                                 {"schedule.decay", "\"cosine\"", "\"linear\""},
                                 {"train.batch", "4", "8"}}));
  EXPECT_EQ(describe({"train.batch", "4", "8"}), "train.batch 4 -> 8");
}

TEST(ConfigChanges, AKeyThatOneOfThemLacksIsNoChange) {
  EXPECT_EQ(
      config_changes("[a]\nold = 1\nsame = 2\n", "[a]\nsame = 2\nb = 3\n"),
      std::vector<ConfigChange>{});
}

TEST(ConfigChanges, OnlyWhatTheWeightsMeanShapesTheModel) {
  for (const char* key : {"model.dim", "model.architecture", "model.seq",
                          "model.rope_base", "model.tied"}) {
    EXPECT_TRUE(shapes_model(key)) << key;
  }
  for (const char* key :
       {"model.dropout", "model.init_std", "train.batch", "optimizer.lr"}) {
    EXPECT_FALSE(shapes_model(key)) << key;
  }
}

TEST(StepShape, TokensOfAStepAreCutIntoMicroBatches) {
  auto config = default_train_config(
      Words{"model.seq=4", "train.batch=2", "train.tokens_per_step=48"});
  const StepShape shape = step_shape(config, 2);
  EXPECT_EQ(shape.micro_batches, 3);
  EXPECT_EQ(shape.windows(), 12);
  EXPECT_EQ(shape.tokens(), 48);
  EXPECT_EQ(step_shape(config, 3).micro_batches, 2);
  config.train.tokens_per_step = 0;
  EXPECT_EQ(step_shape(config, 3).tokens(), 24);
}

TEST(StepShape, TokensThatDoNotDivideAreRefusedWithTheNearestThatDo) {
  const auto config = default_train_config(
      Words{"model.seq=4", "train.batch=2", "train.tokens_per_step=50"});
  try {
    (void)step_shape(config, 2);
    FAIL() << "no error";
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code(), ExitCode::uneven_batch);
    EXPECT_NE(std::string(failure.what()).find("give 48"), std::string::npos)
        << failure.what();
  }
}

}  // namespace
}  // namespace tessera::train
