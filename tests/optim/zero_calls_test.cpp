// What is called around the step, and what is refused: on all ranks, by the
// same error.
#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "tessera/optim/grad_scaler.h"
#include "tessera/parallel/distributed_data_parallel.h"
#include "tests/optim/zero_support.h"

namespace tessera::test {
namespace {

using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;
using ZeroAdamW = ZeroRedundancyOptimizer<torch::optim::AdamW>;
using ZeroSGD = ZeroRedundancyOptimizer<torch::optim::SGD>;

class ZeroRedundancyCalls : public DoubleByDefault {};

TEST_F(ZeroRedundancyCalls, StepCallsAClosureOnce) {
  on_ranks(2, [&](const World& world) {
    const Parameters own = parameters();
    const Parameters plain = values(own);
    ZeroSGD optimizer(own, 0.1, zero_options(world));
    torch::optim::SGD reference(plain, 0.1);
    set_gradients(own, 5);  // which the closure drops
    int calls = 0;
    const auto loss_of = [&](const Parameters& all, auto& each) {
      return [&] {
        ++calls;
        each.zero_grad();
        Tensor loss = torch::zeros({});
        for (const Tensor& one : all) loss = loss + one.pow(2).sum();
        loss.backward();
        return loss.detach();
      };
    };
    for (const Tensor& one : plain) one.set_requires_grad(true);
    const torch::NoGradGuard no_grad;
    const Tensor want = reference.step(loss_of(plain, reference));
    calls = 0;
    const Tensor got = optimizer.step(loss_of(own, optimizer));
    EXPECT_EQ(calls, 1);
    EXPECT_TRUE(torch::equal(got, want));
    expect_equal(own, plain, "values");
  });
}

TEST_F(ZeroRedundancyCalls, AGradScalerSkipsItsStepOnAllRanks) {
  on_ranks(2, [&](const World& world) {
    const Parameters own = parameters();
    ZeroAdamW optimizer(own, 0.1, zero_options(world));
    GradScaler scaler({.init_scale = 4});
    const Parameters before = values(own);
    for (const bool finite : {false, true}) {
      optimizer.zero_grad();
      scaler.scale(own[0].sum() * (finite ? 1 : INFINITY)).backward();
      EXPECT_EQ(static_cast<bool>(scaler.step(optimizer)), finite);
      scaler.update();
      EXPECT_EQ(torch::equal(own[0], before[0]), !finite);
      EXPECT_EQ(optimizer.local_optimizer().state().empty(),
                !finite || !optimizer.owns(own[0]));
    }
  });
}

// LibTorch's parameters() lists it once for each owner, and so do its
// optimizers step it.
TEST_F(ZeroRedundancyCalls, ATiedParameterIsSteppedAsByThePlainOptimizer) {
  on_ranks(2, [&](const World& world) {
    Parameters own = parameters();
    Parameters plain = values(own);
    own.insert(own.begin() + 2, own[0]);
    plain.insert(plain.begin() + 2, plain[0]);
    ZeroAdamW optimizer(own, 0.1, zero_options(world));
    torch::optim::AdamW reference(plain, 0.1);
    for (const int step : {1, 2}) {
      for (const auto* each : {&own, &plain}) {
        set_gradients(Parameters(each->begin() + 2, each->end()), step);
      }
      optimizer.step();
      reference.step();
      expect_equal(own, plain, str("step ", step));
    }
  });
}

TEST_F(ZeroRedundancyCalls, AutogradSeesThatReceivedValuesAreOthers) {
  for (const BucketView view : kViews) {
    on_ranks(2, [&](const World& world) {
      const Parameters own = {parameter(1, {4}), parameter(2, {300, 500})};
      ZeroSGD optimizer(own, 0.1, zero_options(world, view));
      for (const Tensor& one : own) {
        const Tensor loss = one.pow(2).sum();  // saves `one`
        one.mutable_grad() = torch::ones_like(one);
        optimizer.step();
        if (!optimizer.owns(one)) {  // torch::optim's own writes are not seen
          EXPECT_TRUE(says(message_of([&] { loss.backward(); }),
                           "modified by an inplace operation"));
        }
        optimizer.zero_grad();
      }
    });
  }
}

// --- with what averages gradients --------------------------------------------

std::shared_ptr<nn::SequentialImpl> four_layers() {
  auto model = std::make_shared<nn::SequentialImpl>(
      nn::Linear(5, 400), nn::Tanh(), nn::Linear(400, 400), nn::Linear(400, 3));
  const torch::NoGradGuard no_grad;
  int seed = 1;
  for (const Tensor& one : model->parameters()) {
    one.copy_(noise(seed++, one.sizes()));
  }
  return model;
}

// What `forward` gives after three steps on batches of each rank's own.
template <class Forward>
Tensor train(const World& world, Forward&& forward,
             torch::optim::Optimizer& optimizer) {
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const Tensor loss = forward(noise(10 * step + world.rank(), {6, 5}));
    loss.pow(2).mean().backward();
    optimizer.step();
  }
  const torch::NoGradGuard no_grad;
  return forward(noise(99, {2, 5})).clone();
}

TEST_F(ZeroRedundancyCalls, GoesWithReplicate) {
  on_ranks(3, [&](const World& world) {
    const auto run = [&](const auto& make) {
      const auto model = four_layers();
      replicate(*model, {.mesh = init_device_mesh(world)});
      const Optimizer optimizer = make(model->parameters());
      return train(
          world, [&](const Tensor& x) { return model->forward(x); },
          *optimizer);
    };
    const Tensor want = run([](const Parameters& all) {
      return std::make_unique<torch::optim::AdamW>(all, 0.05);
    });
    const Tensor got = run([&](const Parameters& all) {
      return std::make_unique<ZeroAdamW>(all, 0.05, zero_options(world));
    });
    EXPECT_TRUE(torch::equal(got, want));
  });
}

TEST_F(ZeroRedundancyCalls, GoesWithDistributedDataParallel) {
  on_ranks(3, [&](const World& world) {
    const DeviceMesh mesh = init_device_mesh(world);
    const auto run = [&](const auto& make) {
      const auto model = four_layers();
      DistributedDataParallel ddp(model, {.mesh = mesh});
      const Optimizer optimizer = make(model->parameters());
      return train(world, ddp, *optimizer);
    };
    const Tensor want = run([](const Parameters& all) {
      return std::make_unique<torch::optim::AdamW>(all, 0.05);
    });
    for (const BucketView view : kViews) {
      const Tensor got = run([&](const Parameters& all) {
        return std::make_unique<ZeroAdamW>(
            all, 0.05,
            ZeroOptions{.mesh = mesh, .parameters_as_bucket_view = view});
      });
      EXPECT_TRUE(torch::equal(got, want));
    }
  });
}

// --- errors ------------------------------------------------------------------

// What making an optimizer says on each rank: the same, of type E. Afterwards
// the group works.
template <class E, class Give>
std::string refusal(int num_ranks, const Give& give,
                    BucketView view = BucketView::off) {
  std::mutex mutex;
  std::set<std::string> messages;
  on_ranks(num_ranks, [&](const World& world) {
    const ZeroOptions options = zero_options(world, view);
    const Groups groups = give(world);
    std::string message = "no error";
    try {
      const ZeroSGD optimizer(groups, 0.1, options);
    } catch (const E& error) {
      message = error.what();
    }
    EXPECT_EQ(distributed::all_gather_object("x", options.group).size(),
              static_cast<size_t>(num_ranks));
    const std::lock_guard lock(mutex);
    messages.insert(message);
  });
  EXPECT_EQ(messages.size(), 1U);
  return *messages.begin();
}

Groups one_group(Parameters all) { return {Group(std::move(all))}; }

TEST_F(ZeroRedundancyCalls, ListsThatDifferAreRefusedOnAllRanks) {
  const auto differs = [](const std::function<void(Parameters&)>& change) {
    return refusal<InvalidArgument>(3, [&](const World& world) {
      Parameters own = parameters();
      if (world.rank() == 1) change(own);
      return one_group(own);
    });
  };
  const std::string sizes = differs([](Parameters& own) {
    own[2] = parameter(1, {2, 6});
  });
  EXPECT_TRUE(says(sizes, "on ranks 0, 2 parameter 2 of group 0"));
  EXPECT_TRUE(says(sizes, "[3, 2, 2]"));
  EXPECT_TRUE(says(sizes,
                   "but on rank 1 parameter 2 of group 0 is Double "
                   "[2, 6]"));
  EXPECT_TRUE(says(differs([](Parameters& own) { own.pop_back(); }),
                   "on rank 1 end of group 0"));
  EXPECT_TRUE(says(differs([](Parameters& own) {
                     own[1] = own[1].detach().to(torch::kFloat);
                   }),
                   "on rank 1 parameter 1 of group 0 is Float"));
  EXPECT_TRUE(says(differs([](Parameters& own) { own[0] = own[0].detach(); }),
                   "frozen"));
  EXPECT_TRUE(says(differs([](Parameters& own) { own[3] = own[0]; }),
                   "parameter 3 of group 0 is parameter 0 of group 0 again"));
}

TEST_F(ZeroRedundancyCalls, AnErrorOfOneRankIsThatOfAll) {
  const auto fails = [](const std::function<void(Groups&)>& change) {
    return refusal<InvalidArgument>(2, [&](const World& world) {
      Groups groups = one_group(parameters());
      if (world.rank() == 1) change(groups);
      return groups;
    });
  };
  EXPECT_TRUE(says(fails([](Groups& groups) { groups.clear(); }),
                   "on rank 1 there is no parameter"));
  EXPECT_TRUE(
      says(fails([](Groups& groups) { groups[0].params()[2] = Tensor(); }),
           "on rank 1 parameter 2 of group 0 is undefined"));
  EXPECT_TRUE(says(fails([](Groups& groups) {
                     groups[0].params()[1] = groups[0].params()[1] * 2;
                   }),
                   "was computed by autograd"));
  EXPECT_TRUE(says(fails([](Groups& groups) {
                     groups[0].params()[0] = torch::empty({3}, torch::kMeta);
                   }),
                   "meta device"));
  EXPECT_TRUE(says(fails([](Groups& groups) {
                     groups[0].params()[0] = torch::ones({3}).to_sparse();
                   }),
                   "is sparse"));
  EXPECT_TRUE(says(fails([](Groups& groups) {
                     groups.push_back(Group({groups[0].params()[4]}));
                   }),
                   "parameter 0 of group 1 is also parameter 4 of group 0"));
  EXPECT_TRUE(says(fails([](Groups& groups) {
                     groups[0].set_options(std::make_unique<AdamWOptions>(1));
                   }),
                   "options of another optimizer"));
}

TEST_F(ZeroRedundancyCalls, ShardsAreRefused) {
  const auto linear = [] { return nn::Linear(3, 4).ptr(); };
  std::vector<Model> models(2);
  const auto shards = [&](const World& world) {
    models[world.rank()] = build_sharded(world, linear, {});
    return one_group(models[world.rank()]->parameters());
  };
  EXPECT_TRUE(says(refusal<Unsupported>(2, shards),
                   "on ranks 0, 1 parameter 0 of group 0 is a shard"));
  const auto copies = [&](const World& world) {
    models[world.rank()] = build(linear);
    replicate(*models[world.rank()], {.mesh = init_device_mesh(world)});
    return one_group(models[world.rank()]->parameters());
  };
  EXPECT_TRUE(says(refusal<Unsupported>(2, copies, BucketView::on),
                   "Use BucketView::off"));
}

TEST_F(ZeroRedundancyCalls, GroupsThatDoNotFitAreRefused) {
  on_ranks(2, [&](const World& world) {
    EXPECT_TRUE(says(message_of([] { ZeroSGD({parameters()}, 0.1, {}); }),
                     "give a mesh or a group, and not both"));
    const DeviceMesh grid = init_device_mesh(
        world, {.shape = {1, 2}, .axes = {"replicate", "shard"}});
    EXPECT_TRUE(
        says(message_of([&] { ZeroSGD({parameters()}, 0.1, {.mesh = grid}); }),
             "give one axis of it: mesh[\"replicate\"]"));
    const auto alone = distributed::new_group(world, {1});
    const auto make = [&] { ZeroSGD({parameters()}, 0.1, {.group = alone}); };
    EXPECT_TRUE(world.rank() == 1 ? message_of(make).empty()
                                  : says(message_of(make), "is no member"));
  });
}

TEST_F(ZeroRedundancyCalls, AddParamGroupRefusesOnAllRanksAndChangesNothing) {
  on_ranks(2, [&](const World& world) {
    const Parameters own = parameters();
    ZeroSGD optimizer(own, 0.1, zero_options(world));
    const auto add = [&](const Tensor& one) {
      return message_of([&] { optimizer.add_param_group(Group({one})); });
    };
    EXPECT_TRUE(says(add(parameter(1, {2 + world.rank()})),
                     "the ranks have unlike parameters: on rank 0 parameter 0 "
                     "of group 1"));
    EXPECT_TRUE(says(add(own[3]), "is also parameter 3 of group 0"));
    EXPECT_EQ(optimizer.param_groups().size(), 1U);
    set_gradients(own, 1);
    optimizer.step();
    // Past ZeroRedundancyOptimizer, nobody divides it.
    static_cast<torch::optim::Optimizer&>(optimizer).add_param_group(
        Group({parameter(1, {2})}));
    EXPECT_TRUE(says(message_of([&] { optimizer.step(); }),
                     "Add them by add_param_group of"));
  });
}

TEST_F(ZeroRedundancyCalls, AParameterThatLeftItsBucketIsNamed) {
  on_ranks(2, [&](const World& world) {
    Parameters own = parameters();
    ZeroSGD optimizer(own, 0.1, zero_options(world, BucketView::on));
    own[0].set_data(own[0].detach().clone());
    EXPECT_TRUE(says(message_of([&] { optimizer.step(); }),
                     "a parameter of sizes [7, 5] lies outside of its bucket"));
  });
}

}  // namespace
}  // namespace tessera::test
