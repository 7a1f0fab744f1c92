// The example as a whole, on threads as ranks.
#include "examples/train_text/train.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "examples/train_text/build_model.h"
#include "examples/train_text/evaluate.h"
#include "examples/train_text/sample.h"
#include "tessera/base/environment.h"
#include "tessera/comm/world.h"
#include "tessera/shard/full_parameters.h"

namespace train_text {
namespace {

using tessera::DeviceMesh;
using tessera::World;

Options small_options() {
  Options options;
  options.model = {
      .dim = 16, .layers = 2, .heads = 2, .kv_heads = 2, .ffn = 24, .seq = 8};
  options.batch = 12;
  options.steps = 10;
  options.lr = 1e-2;
  options.print_every = 1;
  options.evaluate_every = 5;
  return options;
}

Text repeating_text() {
  std::string text;
  for (int i = 0; i < 40; ++i) {
    text += "the cat sat on the mat. ";
  }
  return Text(text);
}

struct RunResult {
  std::vector<double> losses;
  double held_out = 0;
  std::string sample;
};

/// Trains on `world_size` ranks and returns what each rank got.
std::vector<RunResult> train_on(int world_size, const Options& options) {
  tessera::environment::disable_flight_recorder();
  const Text text = repeating_text();
  const Text held_out("a cat sat on a mat, and on the hat sat the rat.");
  std::vector<RunResult> runs(world_size);
  tessera::run_ranks(world_size, [&](const World& world) {
    const DeviceMesh mesh = tessera::init_device_mesh(world);
    auto model = sharded_model(options, mesh);
    RunResult& run = runs[world.rank()];
    run.losses = train(model, text, held_out, mesh, options).losses;
    run.held_out = held_out_loss(model, held_out, mesh, {.seq = 8, .batch = 2});
    const tessera::FullParameters whole(*model, tessera::Write::discard);
    run.sample = sample(model, {.num_bytes = 30, .window = 8});
  });
  return runs;
}

TEST(TrainText, GivesTheSameRunOnAnyNumberOfRanks) {
  const auto one = train_on(1, small_options()).front();
  ASSERT_EQ(one.losses.size(), 10u);
  EXPECT_LT(one.losses.back(), one.losses.front() - 0.5);
  for (const int world_size : {2, 3, 4}) {
    for (const RunResult& run : train_on(world_size, small_options())) {
      for (size_t step = 0; step < one.losses.size(); ++step) {
        // Sums over ranks in another order; AdamW's first steps amplify that.
        EXPECT_NEAR(run.losses[step], one.losses[step], 1e-4)
            << world_size << " ranks, step " << step;
      }
      EXPECT_NEAR(run.held_out, one.held_out, 1e-4) << world_size << " ranks";
      EXPECT_EQ(run.sample.size(), 30u);
    }
  }
}

TEST(TrainText, AllRanksGetTheSameSampleAndHeldOutLoss) {
  const auto runs = train_on(3, small_options());
  for (const RunResult& run : runs) {
    EXPECT_EQ(run.sample, runs.front().sample);
    EXPECT_EQ(run.held_out, runs.front().held_out);
    EXPECT_EQ(run.losses, runs.front().losses);
  }
}

TEST(TrainText, MinutesEndARunOnAllRanksInTheSameStep) {
  Options options = small_options();
  options.minutes = 1.0 / 60;
  const auto runs = train_on(2, options);
  EXPECT_GT(runs[0].losses.size(), 0u);
  EXPECT_EQ(runs[0].losses.size(), runs[1].losses.size());
}

TEST(HeldOutLoss, CountsEveryWindowOnceWhenRanksGetUnevenShares) {
  const Options options = small_options();
  // 5 windows: with batches of 2, ranks 1 and 2 of three get part or nothing.
  const Text text("0123456789abcdefghijklmnopqrstuvwxyzABCDE");
  ASSERT_EQ(text.num_windows(8), 5);
  tessera::environment::disable_flight_recorder();
  for (const int world_size : {1, 2, 3, 4}) {
    tessera::run_ranks(world_size, [&](const World& world) {
      const DeviceMesh mesh = tessera::init_device_mesh(world);
      auto model = sharded_model(options, mesh);
      const torch::NoGradGuard no_grad;
      const double got =
          held_out_loss(model, text, mesh, {.seq = 8, .batch = 2});
      const Batch all = text.batch({0, 1, 2, 3, 4}, 8);
      const double expected =
          torch::nn::functional::cross_entropy(model(all.input).flatten(0, 1),
                                               all.target.flatten())
              .item<double>();
      EXPECT_NEAR(got, expected, 1e-5) << world_size;
    });
  }
}

TEST(HeldOutLoss, OfAPartTakesEvenlySpacedWindows) {
  const Options options = small_options();
  const Text text("0123456789abcdefghijklmnopqrstuvwxyzABCDE");
  const World world = tessera::init_distributed();
  const DeviceMesh mesh = tessera::init_device_mesh(world);
  auto model = plain_model(options);
  const torch::NoGradGuard no_grad;
  const Batch part = text.batch({0, 2}, 8);
  const double expected =
      torch::nn::functional::cross_entropy(model(part.input).flatten(0, 1),
                                           part.target.flatten())
          .item<double>();
  EXPECT_NEAR(held_out_loss(model, text, mesh, {.seq = 8, .max_windows = 2}),
              expected, 1e-5);
}

}  // namespace
}  // namespace train_text
