#include "tessera/optim/step_count.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

namespace tessera {
namespace {

class StepCountTest : public ::testing::Test {
 protected:
  void step(const std::vector<size_t>& who) {
    std::vector<Stepper> steppers;
    for (size_t i : who) steppers.push_back({&handles_[i], at::kCPU});
    advance(steppers);
  }
  double count(size_t i) const { return handles_[i]->value.item<double>(); }

  std::vector<StepHandle> handles_{4};
};

TEST_F(StepCountTest, IsSharedByThoseThatAlwaysStepTogether) {
  step({0, 1, 2});
  step({2, 0, 1});
  EXPECT_EQ(handles_[0], handles_[1]);
  EXPECT_EQ(handles_[0], handles_[2]);
  EXPECT_EQ(count(0), 2);
  EXPECT_EQ(handles_[3], nullptr);
}

TEST_F(StepCountTest, PartsFromThoseThatMissAStep) {
  step({0, 1, 2, 3});
  step({1, 3});
  EXPECT_EQ(handles_[0], handles_[2]);
  EXPECT_EQ(handles_[1], handles_[3]);
  EXPECT_EQ(count(0), 1);
  EXPECT_EQ(count(1), 2);
  step({0, 1, 2, 3});
  EXPECT_EQ(count(0), 2);
  EXPECT_EQ(count(1), 3);
}

TEST_F(StepCountTest, StartsAtOneForThoseThatComeLater) {
  step({0});
  step({0, 1});
  EXPECT_EQ(count(0), 2);
  EXPECT_EQ(count(1), 1);
}

TEST_F(StepCountTest, IsKeptInPlaceSoThatACapturedStepCountsOn) {
  step({0, 1});
  const void* memory = handles_[0]->value.const_data_ptr();
  step({0, 1});
  EXPECT_EQ(handles_[0]->value.const_data_ptr(), memory);
}

TEST_F(StepCountTest, IsSharedAgainByEqualNumbersThatWereSaved) {
  StepAssigner assigner;
  step({0, 1, 2, 3});
  assigner.assign(handles_[0], 5, at::kCPU);
  assigner.assign(handles_[1], 7, at::kCPU);
  assigner.assign(handles_[2], 5, at::kCPU);
  EXPECT_EQ(handles_[0], handles_[2]);
  step({0, 1, 2, 3});
  EXPECT_EQ(count(0), 6);
  EXPECT_EQ(count(1), 8);
  EXPECT_EQ(count(2), 6);
  EXPECT_EQ(count(3), 2);
  EXPECT_EQ(handles_[0], handles_[2]);
}

TEST_F(StepCountTest, IsNotSharedWithANumberSavedBeforeAStep) {
  StepAssigner assigner;
  assigner.assign(handles_[0], 5, at::kCPU);
  step({0});
  assigner.forget();
  assigner.assign(handles_[1], 5, at::kCPU);
  EXPECT_EQ(count(0), 6);
  EXPECT_EQ(count(1), 5);
}

TEST_F(StepCountTest, CanBeAssignedTwice) {
  StepAssigner assigner;
  assigner.assign(handles_[0], 5, at::kCPU);
  assigner.assign(handles_[0], 5, at::kCPU);
  EXPECT_EQ(handles_[0]->num_holders, 1u);
  step({0});
  EXPECT_EQ(count(0), 6);
}

}  // namespace
}  // namespace tessera
