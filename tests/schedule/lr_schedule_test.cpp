#include "tessera/optim/lr_schedule.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <sstream>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/optim/adamw.h"

namespace tessera {
namespace {

using torch::optim::Optimizer;
using Tensors = std::vector<torch::Tensor>;

const LrScheduleOptions kLinear{
    .decay = LrDecay::linear, .total_steps = 10, .warmup_steps = 2};

Tensors one_parameter() { return {torch::ones({2}).requires_grad_()}; }

std::vector<double> rates(Optimizer& optimizer) {
  std::vector<double> rates;
  for (auto& group : optimizer.param_groups()) {
    rates.push_back(group.options().get_lr());
  }
  return rates;
}

TEST(LrSchedule, SetsTheRateOfEveryKindOfOptimizer) {
  namespace optim = torch::optim;
  const Tensors parameters = one_parameter();
  std::vector<std::unique_ptr<Optimizer>> optimizers;
  optimizers.push_back(std::make_unique<optim::SGD>(parameters, 7.0));
  optimizers.push_back(std::make_unique<optim::Adam>(parameters, 7.0));
  optimizers.push_back(std::make_unique<optim::AdamW>(parameters, 7.0));
  optimizers.push_back(std::make_unique<optim::Adagrad>(parameters, 7.0));
  optimizers.push_back(std::make_unique<optim::RMSprop>(parameters, 7.0));
  optimizers.push_back(std::make_unique<optim::LBFGS>(parameters, 7.0));
  optimizers.push_back(
      std::make_unique<tessera::AdamW>(parameters, optim::AdamWOptions(7.0)));
  for (auto& optimizer : optimizers) {
    LrSchedule schedule(*optimizer, kLinear, {0.5});
    schedule.apply(0);
    EXPECT_EQ(rates(*optimizer), std::vector<double>{0.25});
    schedule.apply(6);
    EXPECT_EQ(rates(*optimizer), std::vector<double>{0.25});
    schedule.apply(2);
    EXPECT_EQ(rates(*optimizer), std::vector<double>{0.5});
  }
}

TEST(LrSchedule, ChangesTheStepsThatFollow) {
  const Tensors parameters = one_parameter();
  torch::optim::SGD optimizer(parameters, 7.0);
  LrSchedule schedule(optimizer, kLinear, {0.5});
  for (int64_t step = 0; step < 3; ++step) {
    schedule.apply(step);
    parameters[0].mutable_grad() = torch::ones({2});
    optimizer.step();
  }
  // 1 - 0.25 - 0.5 - 0.5: exact in fp32.
  EXPECT_TRUE(torch::equal(parameters[0], torch::full({2}, -0.25)));
}

TEST(LrSchedule, KeepsThePeakOfEachGroup) {
  std::vector<torch::optim::OptimizerParamGroup> groups = {one_parameter(),
                                                           one_parameter()};
  torch::optim::SGD optimizer(groups, torch::optim::SGDOptions(7.0));
  LrSchedule schedule(optimizer, kLinear, {0.5, 2.0});
  schedule.apply(0);
  EXPECT_EQ(rates(optimizer), (std::vector<double>{0.25, 1.0}));
  EXPECT_EQ(schedule.lr(0, 1), 1.0);
  LrSchedule(optimizer, kLinear, {0.5}).apply(0);
  EXPECT_EQ(rates(optimizer), (std::vector<double>{0.25, 0.25}));
}

TEST(LrSchedule, GoesOnAlikeWhetherLoadedBeforeOrAfterItIsMade) {
  torch::optim::AdamW saved(one_parameter(), 7.0);
  LrSchedule(saved, kLinear, {0.5}).apply(6);
  std::stringstream file;
  torch::save(saved, file);

  torch::optim::AdamW loaded_before(one_parameter(), 7.0);
  torch::load(loaded_before, file);
  ASSERT_EQ(rates(loaded_before), std::vector<double>{0.25});
  LrSchedule(loaded_before, kLinear, {0.5}).apply(4);

  torch::optim::AdamW loaded_after(one_parameter(), 7.0);
  LrSchedule schedule(loaded_after, kLinear, {0.5});
  file.seekg(0);
  torch::load(loaded_after, file);
  schedule.apply(4);
  EXPECT_EQ(rates(loaded_before), std::vector<double>{0.375});
  EXPECT_EQ(rates(loaded_after), std::vector<double>{0.375});
}

TEST(LrSchedule, RefusesWrongPeaksAndOptions) {
  torch::optim::SGD optimizer(one_parameter(), 7.0);
  EXPECT_THROW(LrSchedule(optimizer, kLinear, {}), InvalidArgument);
  EXPECT_THROW(LrSchedule(optimizer, kLinear, {-1.0}), InvalidArgument);
  EXPECT_THROW(LrSchedule(optimizer, {}, {1.0}), InvalidArgument);
  EXPECT_EQ(rates(optimizer), std::vector<double>{7.0});
}

TEST(LrSchedule, RefusesAnotherNumberOfGroups) {
  torch::optim::SGD optimizer(one_parameter(), 7.0);
  LrSchedule schedule(optimizer, kLinear, {1.0, 2.0});
  EXPECT_THROW(schedule.apply(0), InvalidState);
  EXPECT_THROW((void)schedule.lr(0, 2), InvalidArgument);
  EXPECT_EQ(rates(optimizer), std::vector<double>{7.0});
}

}  // namespace
}  // namespace tessera
