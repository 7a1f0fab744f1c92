// A run that is stopped, killed or changed, and goes on: `tessera train
// --resume` as real processes.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/trainer/trainer_program.h"

namespace tessera::train {
namespace {

class Resume : public Program {
 protected:
  [[nodiscard]] std::string to(const std::string& run) const {
    return "--output.folder=" + path(run);
  }

  [[nodiscard]] std::string value_in(const std::string& checkpoint,
                                     const std::string& key) const {
    const Ended ended =
        run({TESSERA_PROGRAM, "checkpoint", "inspect", path(checkpoint)});
    EXPECT_EQ(ended.code, 0) << ended.error;
    const size_t at = ended.output.find(key);
    if (at == std::string::npos) return ended.output;
    const size_t end = ended.output.find('\n', at);
    const std::string line = ended.output.substr(at, end - at);
    return line.substr(line.find_last_of(' ') + 1);
  }

  /// A whole run on two ranks that keeps its checkpoint of step 5.
  [[nodiscard]] Ended run_straight(const Words& more) const {
    Words words = {"--checkpoint.every=5", "--checkpoint.keep_latest=0",
                   "--train.deterministic", "--schedule.warmup_steps=3",
                   to("straight")};
    words.insert(words.end(), more.begin(), more.end());
    return run(on_ranks(2, train_words(words)));
  }

  [[nodiscard]] Words resumed_words(const std::string& into,
                                    const Words& more) const {
    Words words = {"--resume", path("straight/checkpoints/step-5"),
                   "--train.deterministic", "--schedule.warmup_steps=3",
                   to(into)};
    words.insert(words.end(), more.begin(), more.end());
    return train_words(words);
  }
};

TEST_F(Resume, AtTheSameNumberOfRanksEqualsNeverStoppedInEveryBit) {
  const std::string dropout = "--model.dropout=0.2";
  const Ended straight = run_straight({dropout});
  ASSERT_EQ(straight.code, 0) << straight.error;
  const Ended resumed = run(on_ranks(2, resumed_words("resumed", {dropout})));
  ASSERT_EQ(resumed.code, 0) << resumed.error;

  auto want = losses("straight");
  ASSERT_EQ(want.size(), 12u);
  want.erase(want.begin(), want.begin() + 5);
  EXPECT_EQ(losses("resumed"), want);
  EXPECT_EQ(losses("resumed", "held_out_loss").back(),
            losses("straight", "held_out_loss").back());
  const auto weights = read(path("straight/model.safetensors"));
  EXPECT_GT(weights.size(), 1000u);
  EXPECT_EQ(read(path("resumed/model.safetensors")), weights);
}

TEST_F(Resume, AtAnotherNumberOfRanksIsTheSameRunButForRounding) {
  const Words other = {"--optimizer.name=torch_adamw"};
  const Ended straight = run_straight(other);
  ASSERT_EQ(straight.code, 0) << straight.error;
  const auto want = losses("straight");
  ASSERT_EQ(want.size(), 12u);

  const Ended one = run(resumed_words("one", {"--optimizer.name=torch_adamw"}));
  ASSERT_EQ(one.code, 0) << one.error;
  EXPECT_GT(count(one.output, "saved on 2, goes on on 1 rank"), 0)
      << one.output;
  const Ended three =
      run(on_ranks(3, resumed_words("three", {"--optimizer.name=torch_adamw",
                                              "--train.batch=4"})));
  ASSERT_EQ(three.code, 0) << three.error;
  EXPECT_GT(count(three.output, "changed: train.batch 6 -> 4"), 0)
      << three.output;

  for (const char* name : {"one", "three"}) {
    const auto got = losses(name);
    ASSERT_EQ(got.size(), 7u);
    for (size_t i = 0; i < got.size(); ++i) {
      // fp32 sums in another order, amplified by AdamW's first steps.
      EXPECT_NEAR(got[i], want[5 + i], 1e-3) << name << " " << i;
    }
    // 12 steps of 96 tokens in windows of 8: each sample once.
    EXPECT_EQ(value_in(str(name, "/checkpoints/step-12"), "trainer.samples"),
              "144");
  }
}

struct Layout {
  const char* name;
  int ranks;
  Words words;
};

// Each run of the chain begins anew, and the next one also goes on from its
// fifth step.
TEST_F(Resume, OnAnotherLayoutIsTheSameRunButForRounding) {
  const std::vector<Layout> layouts = {
      {"plain", 1, {}},
      {"hsdp", 4, {"--shard.replicas=2", "--shard.prefetch=1"}},
      {"kept", 4, {"--shard.reshard=2"}},
      {"offloaded", 2, {"--shard.offload=pinned", "--shard.replicas=2"}},
      {"plain_again", 1, {}}};
  const auto words = [&](const Layout& layout, const std::string& into) {
    Words all = {"--checkpoint.every=5", "--checkpoint.keep_latest=0",
                 str("--train.batch=", layout.ranks == 4 ? 3 : 6),
                 "--optimizer.eps=1e-3", to(into)};
    all.insert(all.end(), layout.words.begin(), layout.words.end());
    return all;
  };
  std::vector<double> want, held_out;
  std::string before;
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.name);
    const Ended ended =
        run(on_ranks(layout.ranks, train_words(words(layout, layout.name))));
    ASSERT_EQ(ended.code, 0) << ended.error;
    const bool replicated = layout.words.size() == 2;
    EXPECT_EQ(count(ended.error, "(dp_replicate: 2, dp_shard: "), replicated)
        << ended.error;
    const auto got = losses(layout.name);
    if (want.empty()) {
      want = got;
      held_out = losses(layout.name, "held_out_loss");
    }
    ASSERT_EQ(got.size(), 12u);
    // fp32 sums in another order.
    for (size_t i = 0; i < 12; ++i) EXPECT_NEAR(got[i], want[i], 1e-4) << i;
    const auto measured = losses(layout.name, "held_out_loss");
    ASSERT_EQ(measured.size(), held_out.size());
    EXPECT_NEAR(measured.back(), held_out.back(), 1e-4);
    if (!before.empty()) {
      Words resumed = words(layout, "resumed");
      resumed.insert(resumed.end(),
                     {"--resume", path(before + "/checkpoints/step-5")});
      const Ended on = run(on_ranks(layout.ranks, train_words(resumed)));
      ASSERT_EQ(on.code, 0) << on.error;
      const auto rest = losses("resumed");
      ASSERT_EQ(rest.size(), 7u);
      for (size_t i = 0; i < 7; ++i) EXPECT_NEAR(rest[i], want[5 + i], 1e-4);
      std::filesystem::remove_all(path("resumed"));
    }
    before = layout.name;
  }
}

TEST_F(Resume, ASignalSavesAndTheRunGoesOnWhereItStood) {
  double done = 0;
  for (const int signal : {SIGTERM, SIGUSR1}) {
    RunningProgram program(
        on_ranks(2, train_words({"--resume", "auto", "--train.steps=1000000",
                                 "--checkpoint.keep_best=false"})));
    const auto started = program.wait_for_lines(3);
    EXPECT_EQ(count(started, "begins anew"), signal == SIGTERM) << started;
    EXPECT_EQ(count(started, "goes on from"), signal == SIGUSR1) << started;
    program.send(signal);
    const Ended ended = end(program);
    ASSERT_EQ(ended.code, 0) << signal << "\n" << ended.error;
    EXPECT_EQ(count(ended.error, "--resume auto goes on from there"), 1)
        << ended.error;
    const auto steps = steps_of("run");
    EXPECT_GT(steps.back(), done);
    done = steps.back();
    EXPECT_EQ(steps, steps_to(done));
    const auto saved = names_in("run/checkpoints");
    EXPECT_EQ(
        std::ranges::count(saved, str("step-", static_cast<int64_t>(done))), 1);
  }
}

TEST_F(Resume, ASecondSigtermEndsTheStepAtOnce) {
  // One step of about a minute.
  RunningProgram program(
      train_words({"--train.tokens_per_step=4800000", "--data.verify=false"}));
  (void)program.wait_for_lines(1);
  const auto first = std::chrono::steady_clock::now();
  program.send(SIGTERM);
  EXPECT_TRUE(launch::eventually([&] {
    program.send(SIGTERM);
    return !launch::alive(program.process());
  }));
  const std::chrono::duration<double> took =
      std::chrono::steady_clock::now() - first;
  EXPECT_EQ(program.wait(), 128 + SIGTERM);
  EXPECT_GE(took.count(), 0.9) << "one wish may come twice";
  EXPECT_LT(took.count(), 10);
  EXPECT_TRUE(losses("run").empty());
}

TEST_F(Resume, KeepsTheLatestAndEveryNth) {
  for (const char* how : {"async", "sync"}) {
    const Ended ended = run(
        train_words({str("--checkpoint.how=", how), "--checkpoint.every=2",
                     "--checkpoint.keep_latest=2", "--checkpoint.keep_every=6",
                     "--checkpoint.keep_best=false", to(how)}));
    ASSERT_EQ(ended.code, 0) << ended.error;
    EXPECT_EQ(names_in(str(how, "/checkpoints")),
              (Names{"step-10", "step-12", "step-6"}));
  }
}

TEST_F(Resume, TheBestIsKeptWhenItsOwnCheckpointIsGone) {
  // The rate explodes after the second evaluation: what comes later is worse.
  const Words words = {"--evaluation.every=2", "--checkpoint.keep_latest=1",
                       "--train.steps=4"};
  ASSERT_EQ(run(train_words(words)).code, 0);
  const Ended ended =
      run(train_words({"--resume", "auto", "--optimizer.lr=3",
                       "--evaluation.every=2", "--checkpoint.keep_latest=1"}));
  ASSERT_EQ(ended.code, 0) << ended.error;
  EXPECT_EQ(names_in("run/checkpoints"), (Names{"best", "step-12"}));
  EXPECT_EQ(value_in("run/checkpoints/best", "trainer.step"), "4");
  EXPECT_EQ(run({TESSERA_PROGRAM, "checkpoint", "verify",
                 path("run/checkpoints/best")})
                .code,
            0);
}

TEST_F(Resume, WhatIsOfAnotherRunIsSetAside) {
  const Words words = {"--checkpoint.every=4", "--checkpoint.keep_best=false"};
  ASSERT_EQ(run(train_words(words)).code, 0);
  const Ended anew = run(train_words(words));
  ASSERT_EQ(anew.code, 0) << anew.error;
  EXPECT_EQ(count(anew.output, "run/checkpoints.1' now"), 1) << anew.output;
  EXPECT_EQ(names_in("run/checkpoints.1"), (Names{"step-12", "step-8"}));

  // From an earlier step of its own: the later one would be the newest.
  const Ended back = run(train_words(
      {"--resume", path("run/checkpoints/step-8"), "--train.steps=10"}));
  ASSERT_EQ(back.code, 0) << back.error;
  EXPECT_EQ(names_in("run/checkpoints.2"), Names{"step-12"});
  EXPECT_EQ(steps_of("run"), steps_to(10));

  const auto metrics = read(path("run/metrics.jsonl"));
  const Ended done = run(train_words({"--resume", "auto", "--train.steps=10"}));
  ASSERT_EQ(done.code, 0) << done.error;
  EXPECT_EQ(count(done.output, "all steps are done"), 1) << done.output;
  EXPECT_EQ(read(path("run/metrics.jsonl")), metrics);
}

// A limit on the size of files stands for a disk that becomes full.
TEST_F(Resume, AFullDiskWhileSavingLeavesTheCheckpointBefore) {
  for (const char* how : {"async", "sync"}) {
    const Words words = {str("--checkpoint.how=", how), to(how), "--resume",
                         "auto", "--checkpoint.keep_best=false"};
    Words first = words;
    first.emplace_back("--train.steps=4");
    ASSERT_EQ(run(train_words(first)).code, 0);
    RunningProgram program(train_words(words), {.in_child = [] {
                             ::signal(SIGXFSZ, SIG_IGN);
                             const rlimit limit{8'000, 8'000};
                             ::setrlimit(RLIMIT_FSIZE, &limit);
                           }});
    const Ended ended = end(program);
    EXPECT_EQ(ended.code, 20) << ended.error;
    EXPECT_EQ(count(ended.error, "tessera train: "), 1) << ended.error;
    EXPECT_EQ(count(ended.error, "the checkpoint was not saved"), 1)
        << ended.error;
    EXPECT_EQ(names_in(str(how, "/checkpoints")), Names{"step-4"});
    EXPECT_EQ(run(train_words(words)).code, 0) << "with room again";
    EXPECT_EQ(steps_of(how), steps_to(12));
  }
}

TEST_F(Resume, AnotherModelIsRefusedByItsKeysAndAnotherRateIsSaid) {
  const Words words = {"--train.steps=2", "--resume", "auto"};
  ASSERT_EQ(run(train_words(words)).code, 0);
  const Ended other = run(train_words(
      {"--resume", "auto", "--model.dim=32", "--optimizer.lr=2e-2"}));
  EXPECT_EQ(other.code, 23) << other.error;
  EXPECT_EQ(count(other.error, "model.dim 16 -> 32;"), 1) << other.error;
  EXPECT_EQ(losses("run").size(), 2u) << "a refusal leaves the folder alone";

  const Ended rate =
      run(train_words({"--resume", path("run"), "--train.steps=4",
                       "--optimizer.weight_decay=0.5", "--optimizer.lr=2e-2"}));
  ASSERT_EQ(rate.code, 0) << rate.error;
  EXPECT_EQ(count(rate.output, "optimizer.lr 0.01 -> 0.02, "), 1)
      << rate.output;
  EXPECT_EQ(value_in("run/checkpoints/step-4", "param_groups.0.weight_decay"),
            "0.5");
}

// A rank that is killed while it saves ---------------------------------------

class KilledSave : public Resume,
                   public testing::WithParamInterface<const char*> {};

TEST_P(KilledSave, LeavesTheCheckpointBeforeAndTheRunGoesOn) {
  std::ofstream(path("train.toml"), std::ios::app)
      << "[checkpoint]\nevery = 4\nkeep_best = false\n";
  const Ended killed =
      run(on_ranks(2, {KILLED_SAVE, path("train.toml"), "8", GetParam()}));
  EXPECT_NE(killed.code, 0);
  EXPECT_GT(count(killed.error, "SIGKILL"), 0) << killed.error;
  const auto left = names_in("run/checkpoints");
  EXPECT_EQ(std::ranges::count(left, "step-4"), 1);
  EXPECT_EQ(std::ranges::count(left, "step-8"), 0);

  const Ended ended = run(on_ranks(2, train_words({"--resume", "auto"})));
  ASSERT_EQ(ended.code, 0) << ended.error;
  EXPECT_GT(count(ended.output, "checkpoints/step-4', after step 4"), 0)
      << ended.output;
  EXPECT_EQ(steps_of("run"), steps_to(12));
  EXPECT_EQ(names_in("run/checkpoints"), (Names{"step-12", "step-8"}));
}

INSTANTIATE_TEST_SUITE_P(Moments, KilledSave,
                         testing::Values("data", "metadata", "rename"),
                         [](const auto& moment) {
                           return std::string(moment.param);
                         });

}  // namespace
}  // namespace tessera::train
