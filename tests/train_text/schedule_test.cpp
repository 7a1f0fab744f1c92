#include "examples/train_text/schedule.h"

#include <gtest/gtest.h>

namespace train_text {
namespace {

TEST(LearningRate, RisesInAStraightLineThenFallsToZero) {
  EXPECT_DOUBLE_EQ(learning_rate(0.05, 2.0, 0.1), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(0.1, 2.0, 0.1), 2.0);
  EXPECT_DOUBLE_EQ(learning_rate(0.55, 2.0, 0.1), 1.0);
  EXPECT_NEAR(learning_rate(1.0, 2.0, 0.1), 0.0, 1e-15);
}

TEST(LearningRate, IsAboveZeroFromTheFirstStepToTheLast) {
  for (double progress = 0; progress < 1; progress += 1.0 / 512) {
    EXPECT_GT(learning_rate(progress, 1.0, 0.1), 0.0) << progress;
  }
}

TEST(LearningRate, WithoutWarmUpStartsAtThePeak) {
  EXPECT_DOUBLE_EQ(learning_rate(0.0, 3.0, 0.0), 3.0);
}

TEST(LearningRate, StaysAtZeroPastTheEnd) {
  EXPECT_NEAR(learning_rate(1.5, 3.0, 0.1), 0.0, 1e-15);
}

}  // namespace
}  // namespace train_text
