// What a configuration asks for reaches every unit of a model.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/comm/world.h"
#include "tessera/shard/find_units.h"
#include "tests/trainer/small_model.h"

namespace tessera::train {
namespace {

using test::kSmallModels;

// A CPU does not show where shards are.
TEST(ShardConfig, OffloadReachesEveryUnit) {
  run_ranks(2, [](const World& world) {
    const auto mesh = init_device_mesh(world);
    for (const auto offload :
         {Offload::none, Offload::pinned, Offload::pageable}) {
      auto model = test::sharded(kSmallModels[0], mesh, {.offload = offload});
      const auto units = units_below(*model);
      EXPECT_EQ(units.size(), 5u);
      for (const auto& unit : units) {
        const auto& policy = unit->options().offload_policy;
        EXPECT_EQ(policy.has_value(), offload != Offload::none);
        if (policy) {
          EXPECT_EQ(policy->pin_memory, offload == Offload::pinned);
        }
      }
    }
  });
}

// What is sent does not show it.
TEST(ShardConfig, ACopyForGathersReachesEveryUnit) {
  run_ranks(2, [](const World& world) {
    const auto mesh = init_device_mesh(world);
    for (const auto kept : {CopyForGathers::none, CopyForGathers::kept}) {
      auto model = test::sharded(
          kSmallModels[0], mesh,
          {.param_dtype = Precision::bfloat16, .gather_copy = kept});
      (void)model->sum_of_losses(torch::zeros({1, 9}, torch::kLong),
                                 torch::zeros({1, 9}, torch::kLong));
      for (const auto& unit : units_below(*model)) {
        for (const auto& group : unit->groups()) {
          EXPECT_EQ(group->master()->copy.defined(),
                    kept == CopyForGathers::kept)
              << unit->name();
        }
      }
    }
  });
}

}  // namespace
}  // namespace tessera::train
