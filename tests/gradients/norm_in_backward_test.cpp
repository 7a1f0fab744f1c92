// set_norm_in_backward: the very numbers that clipping gives without.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/module/recompute.h"
#include "tessera/optim/adamw.h"
#include "tests/gradients/norm_pair.h"

namespace tessera::test {
namespace {

TEST(NormInBackward, IsTheOneThatClippingTakesToTheBit) {
  for (const int world_size : {1, 2, 3, 4}) {
    on_ranks(world_size, [](const World& world) {
      Pair pair(plain_options(world));
      pair.backward(world.rank());
      expect_equal_norms(pair, str("of ", world.size(), " ranks"));
      for (const double p : {1.0, 3.0}) {
        EXPECT_TRUE(get_total_norm(pair.early->parameters(), {.norm_type = p})
                        .equal(get_total_norm(pair.late->parameters(),
                                              {.norm_type = p})))
            << p;
      }
      EXPECT_TRUE(is_kept(pair.early));
      EXPECT_FALSE(is_kept(pair.late));
    });
  }
}

// Over what one chunk of a CPU norm holds.
TEST(NormInBackward, IsEqualForLargeParametersAndLowerPrecisions) {
  const Make make = [] {
    return std::make_shared<nn::LinearImpl>(
        nn::LinearOptions(257, 311).bias(true));
  };
  on_ranks(2, [&](const World& world) {
    for (const auto dtype : {torch::kDouble, torch::kFloat, torch::kBFloat16}) {
      const Model early = build(make), late = build(make);
      for (const Model& model : {early, late}) {
        model->to(dtype);
        fully_shard(*model, plain_options(world));
      }
      set_norm_in_backward(*early, NormInBackward::on);
      for (const Model& model : {early, late}) {
        const auto x = noise(world.rank(), {4, 257}).to(dtype);
        model->as<nn::Linear>()->forward(x).pow(2).sum().backward();
      }
      EXPECT_TRUE(norm_of(early).equal(norm_of(late))) << dtype;
      EXPECT_EQ(norm_of(early).scalar_type(),
                dtype == torch::kDouble ? torch::kDouble : torch::kFloat);
      EXPECT_TRUE(is_kept(early)) << dtype;
    }
  });
}

// What is summed is then not yet the gradient.
TEST(NormInBackward, IsThatOfGradientsThatAreSummedInLowerPrecision) {
  for (const int world_size : {1, 2}) {
    on_ranks(world_size, [](const World& world) {
      auto options = plain_options(world);
      options.mp_policy = {.param_dtype = torch::kBFloat16,
                           .reduce_dtype = torch::kBFloat16};
      Pair pair(options);
      pair.backward(world.rank());
      expect_equal_norms(pair, "summed in bfloat16");
      EXPECT_TRUE(is_kept(pair.early));
    });
  }
}

TEST(NormInBackward, IsThatOfAllPassesOfAStep) {
  for (const int world_size : {1, 4}) {
    on_ranks(world_size, [](const World& world) {
      for (const bool reduced_each : {true, false}) {
        Pair pair(plain_options(world));
        for (int i = 0; i < 3; ++i) {
          pair.both([&](nn::Module& model) {
            set_requires_gradient_sync(
                model, reduced_each || i == 2 ? Sync::on : Sync::off);
          });
          pair.backward(world.rank(), i);
        }
        expect_equal_norms(pair, str("reduced each time: ", reduced_each));
        EXPECT_TRUE(is_kept(pair.early));
      }
    });
  }
}

// A region that is computed again brings its gradients when it is through: the
// unit is summed for each.
TEST(NormInBackward, IsThatOfAllSumsOfAPass) {
  for (const int world_size : {1, 2}) {
    on_ranks(world_size, [](const World& world) {
      Pair pair(plain_options(world));
      pair.both([&](nn::Module& model) {
        const auto region = [&](const Tensor& x) {
          return as_net(model).c(x).tanh();
        };
        const auto x = noise(world.rank(), {5, 8}).to(torch::kFloat);
        const auto y = x.clone().requires_grad_();
        const Tensor once = recompute(region, y);
        (once.sum() + recompute(region, y * 2).pow(2).sum()).backward();
      });
      expect_equal_norms(pair, "two regions");
      EXPECT_TRUE(is_kept(pair.early));
    });
  }
}

TEST(NormInBackward, IsThatOfAllReplicas) {
  on_ranks(4, [](const World& world) {
    const auto mesh = init_device_mesh(
        world, {.shape = {2, 2}, .axes = {"dp_replicate", "dp_shard"}});
    Pair pair(options_for(mesh));
    for (const AllReduce all_reduce : {AllReduce::off, AllReduce::on}) {
      pair.both([&](nn::Module& model) {
        set_requires_all_reduce(model, all_reduce);
      });
      pair.backward(world.rank(), all_reduce == AllReduce::on);
    }
    expect_equal_norms(pair, "of replicas");
    EXPECT_TRUE(is_kept(pair.early));
  });
}

/// Not before a hook has changed the gradients.
TEST(NormInBackward, IsThatOfWhatHooksLeave) {
  const std::vector<std::pair<std::string, Change>> hooks = {
      {"on a shard",
       [](nn::Module& model) {
         shard_of(model, "c.weight").register_hook([](const Tensor& grad) {
           return grad * 3;
         });
       }},
      {"behind the sum",
       [](nn::Module& model) {
         set_all_reduce_hook(model, [](const Tensor& flat) {
           const torch::NoGradGuard no_grad;
           flat.mul_(3);
         });
       }},
      {"a factor",
       [](nn::Module& model) { set_gradient_divide_factor(model, 0.25); }}};
  for (const int world_size : {1, 2}) {
    on_ranks(world_size, [&](const World& world) {
      for (const auto& [what, hook] : hooks) {
        Pair pair(plain_options(world));
        pair.backward(world.rank());
        const Tensor without = norm_of(pair.late);
        pair.both([](nn::Module& model) { model.zero_grad(); });
        pair.both(hook);
        pair.backward(world.rank());
        expect_equal_norms(pair, what);
        EXPECT_GT(norm_of(pair.early).item<double>(), without.item<double>());
        EXPECT_TRUE(is_kept(pair.early)) << what;
      }
    });
  }
}

TEST(NormInBackward, IsEqualForSomeOfTheParameters) {
  for (const int world_size : {1, 2}) {
    on_ranks(world_size, [](const World& world) {
      Pair pair(plain_options(world));
      pair.both([](nn::Module& model) {
        shard_of(model, "a.f.weight").set_requires_grad(false);
      });
      pair.backward(world.rank());
      expect_equal_norms(pair, "one frozen");
      const std::vector<std::vector<std::string>> lists = {
          {"b.f.weight", "b.f.bias", "b.gain"},
          {"b.f.bias"},
          {"c.bias", "a.gain", "c.bias"}};
      for (const auto& names : lists) {
        std::vector<Tensor> early, late;
        for (const auto& name : names) {
          early.push_back(shard_of(*pair.early, name));
          late.push_back(shard_of(*pair.late, name));
        }
        EXPECT_TRUE(get_total_norm(early).equal(get_total_norm(late)));
        EXPECT_GT(get_total_norm(late).item<double>(), 0);
      }
    });
  }
}

TEST(NormInBackward, CanBeGivenUpAndActsOnUnitsOnly) {
  on_ranks(2, [](const World& world) {
    Pair pair(plain_options(world));
    pair.backward(world.rank());
    set_norm_in_backward(*pair.early, NormInBackward::off);
    pair.backward(world.rank(), 1);
    expect_equal_norms(pair, "given up");
    EXPECT_FALSE(is_kept(pair.early));
    nn::Linear alone(2, 2);
    EXPECT_THROW(set_norm_in_backward(*alone, NormInBackward::on),
                 InvalidArgument);
  });
}

TEST(NormInBackward, TrainsToTheSameWeights) {
  for (const int world_size : {1, 3}) {
    on_ranks(world_size, [](const World& world) {
      Pair pair(plain_options(world));
      pair.both([&](nn::Module& model) {
        AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(0.05));
        for (int step = 0; step < 4; ++step) {
          output_of(model, world.rank(), step).sum().backward();
          optimizer.step_clipped(get_total_norm(model.parameters()), 0.1);
          optimizer.zero_grad();
        }
      });
      const auto early = pair.early->parameters();
      const auto late = pair.late->parameters();
      for (size_t i = 0; i < early.size(); ++i) {
        EXPECT_TRUE(local(early[i]).equal(local(late[i]))) << i;
      }
    });
  }
}

}  // namespace
}  // namespace tessera::test
