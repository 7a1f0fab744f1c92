#include "tessera/train/sample_token.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

// softmax: 0.5, 0.25, 0.125, 0.125
at::Tensor logits() {
  return torch::tensor({0.5, 0.25, 0.125, 0.125}, torch::kDouble).log();
}

std::vector<double> probabilities(const SampleOptions& options) {
  const auto p = token_probabilities(logits(), options);
  return {p.const_data_ptr<double>(), p.const_data_ptr<double>() + p.numel()};
}

void expect_near(const std::vector<double>& got,
                 const std::vector<double>& want) {
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-12);
}

TEST(SampleToken, WithoutCutsItIsTheSoftmax) {
  expect_near(probabilities({.temperature = 1}), {0.5, 0.25, 0.125, 0.125});
}

TEST(SampleToken, TemperatureSharpens) {
  // Squares of the probabilities: 1/4, 1/16, 1/64, 1/64 of 22/64.
  expect_near(probabilities({.temperature = 0.5}),
              {16. / 22, 4. / 22, 1. / 22, 1. / 22});
  expect_near(probabilities({.temperature = 0}), {1, 0, 0, 0});
}

TEST(SampleToken, TopKKeepsTheLikeliest) {
  expect_near(probabilities({.temperature = 1, .top_k = 2}),
              {2. / 3, 1. / 3, 0, 0});
  expect_near(probabilities({.temperature = 1, .top_k = 9}),
              {0.5, 0.25, 0.125, 0.125});
}

TEST(SampleToken, TopPKeepsTheTokenThatReachesIt) {
  expect_near(probabilities({.temperature = 1, .top_p = 0.5}), {1, 0, 0, 0});
  expect_near(probabilities({.temperature = 1, .top_p = 0.6}),
              {2. / 3, 1. / 3, 0, 0});
}

TEST(SampleToken, DrawsByTheProbabilities) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(5);
  std::vector<int> drawn(4, 0);
  for (int i = 0; i < 4000; ++i) {
    ++drawn[sample_token(logits(), {.temperature = 1}, generator)];
  }
  // Deviation of each count: 32 at most.
  EXPECT_NEAR(drawn[0], 2000, 160);
  EXPECT_NEAR(drawn[1], 1000, 160);
  EXPECT_NEAR(drawn[3], 500, 160);
}

TEST(SampleToken, OptionsOutOfRangeAreRefused) {
  for (const SampleOptions& options :
       {SampleOptions{.temperature = -1}, SampleOptions{.top_k = -1},
        SampleOptions{.top_p = 0}, SampleOptions{.top_p = 1.5}}) {
    EXPECT_THROW(validate(options), InvalidArgument);
  }
}

}  // namespace
}  // namespace tessera::train
