// `tessera train`, `generate` and `eval` as real processes, on a tiny model.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/train/metrics_file.h"
#include "tessera/train/token_file_writer.h"
#include "tests/trainer/trainer_program.h"

namespace tessera::train {
namespace {

TEST_F(Program, TrainsOnTwoRanksAndLeavesWhatGenerateAndEvalRead) {
  const Ended ended = run(on_ranks(2, train_words()));
  ASSERT_EQ(ended.code, 0) << ended.error;
  EXPECT_EQ(count(ended.output, "\nstep"), 3 + 3) << ended.output;
  const auto loss = losses("run");
  ASSERT_EQ(loss.size(), 12u);
  EXPECT_NEAR(loss.front(), std::log(256), 0.3);
  EXPECT_LT(loss.back(), loss.front() - 0.3);
  const auto held_out = losses("run", "held_out_loss");
  ASSERT_EQ(held_out.size(), 3u);

  EXPECT_TRUE(read(path("run/loss.svg")).starts_with("<svg"));

  const Ended eval = run({TESSERA_PROGRAM, "eval", path("run")});
  ASSERT_EQ(eval.code, 0) << eval.error;
  EXPECT_NEAR(std::stod(eval.output.substr(5)), held_out.back(), 2e-4)
      << eval.output;

  const Words generate = {
      TESSERA_PROGRAM, "generate", path("run"), "--prompt", "the ",
      "--tokens",      "20",       "--seed",    "3"};
  const Ended text = run(generate);
  ASSERT_EQ(text.code, 0) << text.error;
  EXPECT_TRUE(text.output.starts_with("the ")) << text.output;
  EXPECT_GE(text.output.size(), 4u + 20);
  EXPECT_EQ(run(generate).output, text.output);
}

TEST_F(Program, GivesTheSameRunOnOneRankAsOnTwo) {
  ASSERT_EQ(run(train_words({"--output.folder", path("one")})).code, 2)
      << "an override needs '='";
  ASSERT_EQ(run(train_words({"--output.folder=" + path("one")})).code, 0);
  ASSERT_EQ(
      run(on_ranks(2, train_words({"--output.folder=" + path("two")}))).code,
      0);
  const auto one = losses("one"), two = losses("two");
  ASSERT_EQ(one.size(), two.size());
  for (size_t i = 0; i < one.size(); ++i) {
    // fp32 sums in another order; AdamW's first steps amplify that.
    EXPECT_NEAR(one[i], two[i], 1e-3) << i;
  }
}

TEST_F(Program, TwoDeterministicRunsAreEqualInEveryBit) {
  for (const char* name : {"first", "second"}) {
    const Ended ended =
        run(on_ranks(2, train_words({"--deterministic", "--train.steps=6",
                                     "--output.folder=" + path(name)})));
    ASSERT_EQ(ended.code, 0) << ended.error;
  }
  EXPECT_EQ(losses("first"), losses("second"));
  const auto weights = read(path("first/model.safetensors"));
  EXPECT_GT(weights.size(), 1000u);
  EXPECT_EQ(weights, read(path("second/model.safetensors")));
}

// The second run of a block draws the numbers of the first.
TEST_F(Program, RecomputeWithDropoutGivesTheSameRunInEveryBit) {
  for (const char* recompute : {"none", "selective", "block"}) {
    const Ended ended =
        run(on_ranks(2, train_words({"--model.dropout=0.3", "--model.layers=2",
                                     str("--model.recompute=", recompute),
                                     "--train.deterministic", "--train.steps=6",
                                     "--output.folder=" + path(recompute)})));
    ASSERT_EQ(ended.code, 0) << ended.error;
    EXPECT_EQ(losses(recompute), losses("none")) << recompute;
    EXPECT_EQ(read(path(recompute) + "/model.safetensors"),
              read(path("none/model.safetensors")))
        << recompute;
  }
  ASSERT_EQ(losses("none").size(), 6u);
  const Ended without =
      run(on_ranks(2, train_words({"--model.layers=2", "--train.deterministic",
                                   "--train.steps=6",
                                   "--output.folder=" + path("without")})));
  ASSERT_EQ(without.code, 0) << without.error;
  EXPECT_NE(losses("without"), losses("none")) << "dropout does something";
}

struct BadDay {
  Words words;
  int code;
  const char* says;
};

TEST_F(Program, EveryMistakeHasItsExitCodeAndOneSentence) {
  write_tokens(path("small.tok"), 256, 0);
  auto altered = read(path("text.tok"));
  altered[altered.size() - 3] ^= 1;
  std::ofstream(path("altered.tok"), std::ios::binary) << altered;
  const std::vector<BadDay> days = {
      {{"--train.stepz=3"}, 2, "train.steps"},
      {{"--train.steps=many"}, 2, "train.steps"},
      {{"--resume", path("none")}, 23, "no complete checkpoint"},
      {{"--data.tokens=" + path("none.tok")}, 10, "none.tok"},
      {{"--data.tokens=" + path("altered.tok")}, 11, "altered.tok"},
      {{"--model.seq=4000", "--train.tokens_per_step=0"}, 12, "4000"},
      {{"--model.vocab=100"}, 13, "100"},
      {{"--train.tokens_per_step=100"}, 14, "give 96"},
      {{"--output.folder=/proc/none"}, 20, "/proc/none"},
      {{"--shard.replicas=2"}, 2, "does not divide 1 rank"},
      {{"--train.graph=on"}, 2, "no CUDA graphs"},
      {{"--profile.steps=13:10"}, 2, "10:13"},
      {{"--profile.memory=true"}, 2, "profile.steps"},
      {{"--profile.memory=true", "--profile.steps=1:2"}, 2, "on a cpu"},
  };
  for (const BadDay& day : days) {
    const Ended ended = run(train_words(day.words));
    EXPECT_EQ(ended.code, day.code) << day.words[0] << "\n" << ended.error;
    EXPECT_EQ(count(ended.error, "tessera train: "), 1) << ended.error;
    EXPECT_EQ(count(ended.error, day.says) > 0, true) << ended.error;
  }
}

TEST_F(Program, OneRankSpeaksForAllWhenAllMeetTheSameMistake) {
  const Ended ended = run(on_ranks(2, train_words({"--model.vocab=100"})));
  EXPECT_EQ(ended.code, 13) << ended.error;
  EXPECT_EQ(count(ended.error, "tessera train: "), 1) << ended.error;
  EXPECT_EQ(count(ended.error, "(rank 1)"), 0) << ended.error;
}

// A limit on the size of files stands for a disk that becomes full. One
// process: ranks also share memory by files.
TEST_F(Program, AFileThatCannotGrowEndsTheRunWithItsOwnCode) {
  RunningProgram program(
      train_words({"--train.steps=100000", "--checkpoint.enabled=false"}),
      {.in_child = [] {
        ::signal(SIGXFSZ, SIG_IGN);
        const rlimit limit{8'000, 8'000};
        ::setrlimit(RLIMIT_FSIZE, &limit);
      }});
  const Ended ended = end(program);
  EXPECT_EQ(ended.code, 20) << ended.error;
  EXPECT_EQ(count(ended.error, "metrics.jsonl' cannot be written"), 1)
      << ended.error;
  EXPECT_GT(losses("run").size(), 12u);
}

TEST_F(Program, ALossThatIsNotFiniteStopsOrIsSkippedAndCounted) {
  const std::string wild = "--optimizer.lr=1e30";
  const Ended stopped = run(on_ranks(2, train_words({wild})));
  EXPECT_EQ(stopped.code, 21) << stopped.error;
  EXPECT_EQ(count(stopped.error, "is not finite"), 1) << stopped.error;
  EXPECT_LT(losses("run").size(), 12u);

  const Ended skipped =
      run(on_ranks(2, train_words({wild, "--train.nonfinite=skip"})));
  EXPECT_EQ(skipped.code, 0) << skipped.error;
  EXPECT_GT(losses("run", "skipped").back(), 0);
  EXPECT_GT(count(skipped.output, "| skipped "), 0) << skipped.output;
}

TEST_F(Program, ASignalLetsTheStepFinishAndLeavesTheWeights) {
  for (const int signal : {SIGTERM, SIGHUP, SIGINT}) {
    RunningProgram program(on_ranks(2, train_words({"--train.steps=1000000"})));
    const auto started = program.wait_for_lines(3);
    ASSERT_GT(count(started, "\nstep"), 0) << program.error();
    program.send(signal);
    const Ended ended = end(program);
    EXPECT_EQ(ended.code, 0) << signal << "\n" << ended.error;
    EXPECT_EQ(count(ended.error, "asked to end"), 1) << ended.error;
    EXPECT_TRUE(std::filesystem::remove(path("run/model.safetensors")));
  }
}

TEST_F(Program, AClosedTerminalOfOneProcessEndsItWell) {
  RunningProgram program(train_words({"--train.steps=1000000"}));
  (void)program.wait_for_lines(3);
  program.send(SIGHUP);
  EXPECT_EQ(end(program).code, 0);
  EXPECT_TRUE(std::filesystem::exists(path("run/model.safetensors")));
}

TEST_F(Program, AFolderWithoutWeightsIsNamed) {
  for (const char* command : {"generate", "eval"}) {
    const Ended ended = run({TESSERA_PROGRAM, command, path("none")});
    EXPECT_EQ(ended.code, 22) << ended.error;
    EXPECT_EQ(count(ended.error, path("none")), 1) << ended.error;
  }
}

/// How many ranges of this name a trace has.
int count_ranges(const nlohmann::json& trace, const std::string& name) {
  int found = 0;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.value("ph", "") == "X" && event.value("name", "") == name) {
      ++found;
    }
  }
  return found;
}

TEST_F(Program, ATraceOfSomeStepsHasARangeForEachGatherAndReduction) {
  const Ended ended =
      run(on_ranks(2, train_words({"--profile.steps=4:5", "--train.steps=6",
                                   "--train.graph=if_possible"})));
  ASSERT_EQ(ended.code, 0) << ended.error;
  EXPECT_EQ(count(ended.error, "has no CUDA graphs: steps run without"), 1)
      << ended.error;
  for (const int rank : {0, 1}) {
    const auto trace = nlohmann::json::parse(
        read(path(str("run/trace-rank-", rank, ".json"))));
    EXPECT_EQ(count_ranges(trace, "ProfilerStep#3"), 0);
    EXPECT_EQ(count_ranges(trace, "ProfilerStep#4"), 1);
    EXPECT_EQ(count_ranges(trace, "ProfilerStep#5"), 1);
    EXPECT_EQ(count_ranges(trace, "ProfilerStep#6"), 0);
    for (const std::string unit : {"embed_tokens", "layers.0", "lm_head"}) {
      EXPECT_GE(count_ranges(trace, str("FSDP::all_gather (", unit, ")")), 2)
          << unit;
      EXPECT_EQ(
          count_ranges(trace, str("FSDP::post_backward_reduce (", unit, ")")),
          2)
          << unit;
    }
    EXPECT_GE(count_ranges(trace, "FSDP::all_gather_copy_out"), 2 * 3);
    EXPECT_EQ(count_ranges(trace, "FSDP::root_post_backward_callback"), 2);
    EXPECT_GT(count_ranges(trace, "aten::mm"), 0);
  }
}

TEST_F(Program, ATraceWhoseStepsDoNotAllComeIsWrittenAtTheEnd) {
  ASSERT_EQ(run(train_words({"--profile.steps=11:40"})).code, 0);
  const auto trace = nlohmann::json::parse(read(path("run/trace-rank-0.json")));
  EXPECT_EQ(count_ranges(trace, "ProfilerStep#12"), 1);
}

}  // namespace
}  // namespace tessera::train
