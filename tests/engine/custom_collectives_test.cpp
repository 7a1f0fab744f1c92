// Collectives that a user brings along, for the unit that they are given to.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/net.h"
#include "tests/support/units.h"

namespace tessera::test {
namespace {

class CustomCollectives : public DoubleByDefault {};

Tensor loss_of(const World& world, nn::Module& model) {
  return plain_loss(model, {world.rank(), 0, 1});
}

class CountingGather : public AllGather {
 public:
  c10::DataPtr allocate(size_t bytes, c10::Device device) override {
    ++allocations;
    return AllGather::allocate(bytes, device);
  }
  Pending start(std::span<const GatherCall> calls, Communicator& over,
                const CallLabel& label) override {
    ranks.push_back(over.size());
    return over.all_gather(calls, label);
  }
  int allocations = 0;
  std::vector<int> ranks;  // of each collective
};

class CountingReduce : public ReduceScatter {
 public:
  Tensor allocate(int64_t numel, const at::TensorOptions& options) override {
    ++allocations;
    return ReduceScatter::allocate(numel, options);
  }
  Pending start(std::span<const ReduceCall> calls, Communicator& over,
                const CallLabel& label) override {
    ++collectives;
    return over.reduce_scatter(calls, label);
  }
  int allocations = 0;
  int collectives = 0;
};

TEST_F(CustomCollectives, CarryTheUnitAndItsMemory) {
  const Tensors mean = gradients_of_one_process(2, make_net, plain_loss);
  on_ranks(2, [&](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    const auto gather = std::make_shared<CountingGather>();
    const auto reduce = std::make_shared<CountingReduce>();
    set_custom_all_gather(*as_net(*model).a, gather);
    set_custom_reduce_scatter(*as_net(*model).a, reduce);
    loss_of(world, *model).backward();
    expect_close(full_gradients(world, *model), mean, "gradient");
    EXPECT_EQ(gather->ranks, (std::vector<int>{2, 2}));
    EXPECT_EQ(gather->allocations, 2);
    EXPECT_EQ(reduce->collectives, 1);
    EXPECT_EQ(reduce->allocations, 1);
    set_custom_all_gather(*as_net(*model).a, nullptr);
    loss_of(world, *model).backward();
    EXPECT_EQ(gather->ranks, (std::vector<int>{2, 2}));
  });
}

TEST_F(CustomCollectives, AreRefusedWhereThereIsNothingToCarry) {
  on_ranks(2, [&](const World& world) {
    Model model = build(make_net);
    replicate(*model, options_for(init_device_mesh(world)));
    auto& block = *as_net(*model).a;
    EXPECT_TRUE(says(message_of([&] {
                       set_custom_all_gather(
                           block, std::make_shared<CountingGather>());
                     }),
                     "set_custom_all_gather: unit 'a' is replicated"));
    EXPECT_TRUE(says(message_of([&] {
                       set_custom_reduce_scatter(
                           block, std::make_shared<CountingReduce>());
                     }),
                     "set_custom_reduce_scatter: unit 'a' is replicated"));
  });
}

TEST_F(CustomCollectives, CarryWhatSomeRanksKeepAmongThem) {
  const Tensors mean = gradients_of_one_process(4, make_net, plain_loss);
  on_ranks(4, [&](const World& world) {
    Model model = build(make_net);
    FullyShardOptions options = options_for(init_device_mesh(world));
    options.reshard_after_forward = 2;
    shard(*model, options, kUnits);
    const auto gather = std::make_shared<CountingGather>();
    set_custom_all_gather(*as_net(*model).a, gather);
    loss_of(world, *model).backward();
    expect_close(full_gradients(world, *model), mean, "gradient");
    EXPECT_EQ(gather->ranks, (std::vector<int>{4, 2}));
  });
}

}  // namespace
}  // namespace tessera::test
