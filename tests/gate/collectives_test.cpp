// Collectives that write shards, which no operator does then.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/comm/distributed.h"
#include "tests/support/net.h"

namespace tessera::test {
namespace {

class CollectivesOnShards : public DoubleByDefault {};

// Weights that are averaged over the ranks, or sent by one of them.
TEST_F(CollectivesOnShards, AreSeenByTheNextGather) {
  on_ranks(2, [](const World& world) {
    const auto group = distributed::new_group(world);
    const auto comm = world.make_communicator("mean", {0, 1});
    using Collective = std::function<void(const Tensor&)>;
    const std::vector<std::pair<std::string, Collective>> collectives = {
        {"all_reduce",
         [&](const Tensor& t) { distributed::all_reduce(t, group).wait(); }},
        {"broadcast",
         [&](const Tensor& t) { distributed::broadcast(t, 0, group).wait(); }},
        {"all_gather_into_tensor",
         [&](const Tensor& t) {
           const auto half = torch::full({t.numel() / 2}, 0.25, t.options());
           distributed::all_gather_into_tensor(t, half, group).wait();
         }},
        {"all_to_all_single",
         [&](const Tensor& t) {
           const auto other = torch::full(t.sizes(), 0.5, t.options());
           distributed::all_to_all_single(t, other, group).wait();
         }},
        {"send and recv",
         [&](const Tensor& t) {
           const auto other = torch::full(t.sizes(), 0.75, t.options());
           auto sent = distributed::isend(other, 1 - world.rank(), group);
           distributed::recv(t, 1 - world.rank(), group);
           sent.wait();
         }},
        {"Communicator::all_reduce",
         [&](const Tensor& t) {
           comm->all_reduce(t, ReduceOp::sum, {}).wait();
         }},
        {"Communicator::broadcast",
         [&](const Tensor& t) { comm->broadcast(t, 1, {}).wait(); }}};
    for (const auto& [what, collective] : collectives) {
      const Model model = build(make_net);
      auto options = options_for(init_device_mesh(world));
      options.reshard_after_forward = Reshard::never;
      shard(*model, options, kUnits);
      const torch::NoGradGuard no_grad;
      const Tensor before = as_net(*model).forward(input(0, 0)).clone();
      for (const char* name : {"a.f.weight", "b.f.weight"}) {
        collective(local(model->named_parameters()[name]).view({-1}));
      }
      const Tensor after = as_net(*model).forward(input(0, 0)).clone();
      EXPECT_FALSE(torch::equal(after, before)) << what;
      mark_changed(*model);
      EXPECT_TRUE(torch::equal(as_net(*model).forward(input(0, 0)), after))
          << what;
    }
  });
}

}  // namespace
}  // namespace tessera::test
