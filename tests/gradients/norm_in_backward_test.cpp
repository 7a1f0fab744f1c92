// set_norm_in_backward: the very numbers that clipping gives without.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/module/recompute.h"
#include "tessera/optim/adamw.h"
#include "tessera/optim/clip_grad_norm.h"
#include "tessera/optim/grad_scaler.h"
#include "tests/support/net.h"

namespace tessera::test {
namespace {

Tensor output_of(nn::Module& model, int rank, int step) {
  return as_net(model).forward(input(rank, step).to(torch::kFloat));
}

Tensor shard_of(const nn::Module& model, const std::string& name) {
  return model.named_parameters()[name];
}

using Change = std::function<void(nn::Module&)>;

/// The same model twice: one takes its norms in backward.
struct Pair {
  Model early = build(make_net), late = build(make_net);

  explicit Pair(const FullyShardOptions& options) {
    for (const Model& model : {early, late}) shard(*model, options, kUnits);
    set_norm_in_backward(*early, NormInBackward::on);
  }

  void both(const Change& change) const {
    change(*early);
    change(*late);
  }
  void backward(int rank, int step = 0) const {
    both([&](nn::Module& model) {
      output_of(model, rank, step).pow(2).sum().backward();
    });
  }
};

FullyShardOptions plain_options(const World& world) {
  return options_for(init_device_mesh(world));
}

Tensor norm_of(const Model& model) {
  return get_total_norm(model->parameters());
}

void expect_equal_norms(const Pair& pair, const std::string& what) {
  const Tensor early = norm_of(pair.early), late = norm_of(pair.late);
  EXPECT_GT(late.item<double>(), 0) << what;
  EXPECT_TRUE(early.equal(late)) << what << ": " << early << late;
}

/// Behind the back of the gate and of version counters.
void write_through_pointers(nn::Module& model) {
  for (const Tensor& p : model.parameters()) {
    if (!p.grad().defined()) continue;
    const Tensor grad = local(p.grad());
    auto* bytes = static_cast<std::byte*>(grad.mutable_data_ptr());
    std::fill_n(bytes, grad.nbytes(), std::byte{0});
  }
}

/// Whether the norm is one that backward has kept.
bool is_kept(const Model& model) {
  const Tensor before = norm_of(model);
  write_through_pointers(*model);
  return norm_of(model).equal(before) && before.item<double>() > 0;
}

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

void for_each_gradient(nn::Module& model,
                       const std::function<void(const Tensor&)>& change) {
  for (const Tensor& p : model.parameters()) {
    if (p.grad().defined()) change(p.grad());
  }
}

const std::vector<std::pair<std::string, Change>> kChanges = {
    {"mul_",
     [](nn::Module& model) {
       for_each_gradient(model, [](const Tensor& grad) { grad.mul_(2); });
     }},
    {"one gradient alone",
     [](nn::Module& model) { shard_of(model, "b.gain").grad().mul_(3); }},
    {"data()",
     [](nn::Module& model) {
       for_each_gradient(model,
                         [](const Tensor& grad) { grad.data().add_(1); });
     }},
    {"detach()",
     [](nn::Module& model) {
       for_each_gradient(model,
                         [](const Tensor& grad) { grad.detach().add_(1); });
     }},
    {"local()",
     [](nn::Module& model) {
       for_each_gradient(model,
                         [](const Tensor& grad) { local(grad).add_(1); });
     }},
    {"a view of local()",
     [](nn::Module& model) {
       for_each_gradient(model, [](const Tensor& grad) {
         local(grad).view({-1}).fill_(0.25);
       });
     }},
    {"inference mode",
     [](nn::Module& model) {
       const c10::InferenceMode inference;
       for_each_gradient(model, [](const Tensor& grad) { grad.mul_(2); });
     }},
    {"local() in inference mode",
     [](nn::Module& model) {
       const c10::InferenceMode inference;
       for_each_gradient(model,
                         [](const Tensor& grad) { local(grad).mul_(2); });
     }},
    {"a list of them",
     [](nn::Module& model) {
       std::vector<Tensor> grads;
       for_each_gradient(model,
                         [&](const Tensor& grad) { grads.push_back(grad); });
       at::_foreach_mul_(grads, 0.5);
     }},
    {"clip_grad_norm_",
     [](nn::Module& model) { clip_grad_norm_(model.parameters(), 0.01); }},
    {"clip_grad_norm_ in inference mode",
     [](nn::Module& model) {
       const c10::InferenceMode inference;
       clip_grad_norm_(model.parameters(), 0.01);
     }},
    {"clip_grads_with_norm_",
     [](nn::Module& model) {
       clip_grads_with_norm_(model.parameters(), 1, torch::full({}, 10.0));
     }},
    {"a gradient that is gone",
     [](nn::Module& model) {
       shard_of(model, "b.gain").mutable_grad().reset();
     }},
    {"another gradient",
     [](nn::Module& model) {
       Tensor& grad = shard_of(model, "b.gain").mutable_grad();
       grad = local(grad).clone().mul_(5);
     }},
    {"another backward", [](nn::Module& model) {
       output_of(model, 0, 9).pow(2).sum().backward();
     }}};

TEST(NormInBackward, SeesWhatOperatorsChangeSince) {
  for (const int world_size : {1, 2, 3}) {
    on_ranks(world_size, [](const World& world) {
      for (const auto& [what, change] : kChanges) {
        Pair pair(plain_options(world));
        pair.backward(world.rank());
        const Tensor before = norm_of(pair.early);
        pair.both(change);
        expect_equal_norms(pair, what);
        EXPECT_FALSE(norm_of(pair.early).equal(before)) << what;
      }
    });
  }
}

TEST(NormInBackward, SeesAGradScalerAndZeroGrad) {
  on_ranks(2, [](const World& world) {
    Pair pair(plain_options(world));
    pair.both([&](nn::Module& model) {
      AdamW optimizer(model.parameters());
      GradScaler scaler({.init_scale = 8});
      scaler.scale(output_of(model, world.rank(), 0).sum()).backward();
      scaler.unscale_(optimizer);
    });
    expect_equal_norms(pair, "unscaled");
    pair.backward(world.rank());
    pair.both(
        [](nn::Module& model) { model.zero_grad(/*set_to_none=*/false); });
    EXPECT_EQ(norm_of(pair.early).item<double>(), 0);
    pair.backward(world.rank());
    expect_equal_norms(pair, "added to zeros");
    pair.both([](nn::Module& model) { model.zero_grad(); });
    EXPECT_EQ(norm_of(pair.early).item<double>(), 0);
  });
}

TEST(NormInBackward, SeesACollective) {
  on_ranks(2, [](const World& world) {
    const auto comm = world.make_communicator("all", {0, 1});
    Pair pair(plain_options(world));
    pair.backward(world.rank());
    pair.both([&](nn::Module& model) {
      const Tensor grad = local(shard_of(model, "a.f.weight").grad());
      comm->all_reduce(grad, ReduceOp::sum, {}).wait();
    });
    expect_equal_norms(pair, "summed once more");
  });
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
