// Custom functions, hooks, nested backward, other threads, lost models.
#include <torch/csrc/autograd/function_hook.h>

#include <atomic>
#include <thread>

#include "tests/support/net.h"

namespace tessera::test {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::tensor_list;

using Functions = DoubleByDefault;

// Custom functions ------------------------------------------------------------

struct SavesItsWeight : Function<SavesItsWeight> {
  static Tensor forward(AutogradContext* context, const Tensor& x,
                        const Tensor& w) {
    context->save_for_backward({x, w});
    context->saved_data["w"] = w;
    return x.mm(w.t());
  }
  static tensor_list backward(AutogradContext* context, tensor_list grads) {
    const auto saved = context->get_saved_variables();
    return {grads[0].mm(context->saved_data["w"].toTensor()),
            grads[0].t().mm(saved[0])};
  }
};

// Its backward may return a saved parameter itself.
struct ReturnsItsWeight : Function<ReturnsItsWeight> {
  static Tensor forward(AutogradContext* context, const Tensor& p,
                        const Tensor& q) {
    context->save_for_backward({p, q});
    return (p * q).sum();
  }
  static tensor_list backward(AutogradContext* context, tensor_list grads) {
    const auto saved = context->get_saved_variables();
    if (grads[0].item<double>() == 1) return {saved[1], saved[0]};
    return {saved[1] * grads[0], saved[0] * grads[0]};
  }
};

using Step = std::function<Tensor(const Tensor&)>;

// Runs a piece of the model again in backward.
struct Recomputes : Function<Recomputes> {
  static Tensor forward(AutogradContext* context, const Tensor& x,
                        const std::shared_ptr<Step>& step) {
    context->save_for_backward({x});
    auto* kept = new std::shared_ptr<Step>(step);
    context->saved_data["step"] = reinterpret_cast<int64_t>(kept);
    return (*step)(x);
  }
  static tensor_list backward(AutogradContext* context, tensor_list grads) {
    const std::unique_ptr<std::shared_ptr<Step>> step(
        reinterpret_cast<std::shared_ptr<Step>*>(
            context->saved_data["step"].toInt()));
    torch::AutoGradMode grad_mode(true);
    const Tensor x =
        context->get_saved_variables()[0].detach().requires_grad_();
    torch::autograd::backward({(**step)(x)}, {grads[0]});
    return {x.grad(), Tensor()};
  }
};

Tensor recomputed(const Tensor& x, Step step) {
  return Recomputes::apply(x, std::make_shared<Step>(std::move(step)));
}

TEST_F(Functions, ACustomFunctionSavesAWeight) {
  expect_agreement(make_net,
                   [](nn::Module& m, const Turn& turn) {
                     auto& net = as_net(m);
                     const Tensor h =
                         SavesItsWeight::apply(input(turn), net.a->f->weight);
                     return square_loss(net.c(net.b(torch::tanh(h))));
                   },
                   {.units = kUnits});
}

TEST_F(Functions, ACustomFunctionGivesBackAWeightAsGradient) {
  expect_agreement(
      make_net,
      [](nn::Module& m, const Turn& turn) {
        auto& net = as_net(m);
        return plain_loss(m, turn) +
               ReturnsItsWeight::apply(net.a->extra, net.b->extra) +
               ReturnsItsWeight::apply(net.a->gain, net.c->weight.select(0, 0));
      },
      {.units = kUnits});
}

TEST_F(Functions, ABlockIsRecomputedInBackward) {
  expect_agreement(make_net,
                   [](nn::Module& m, const Turn& turn) {
                     auto& net = as_net(m);
                     const Tensor h =
                         recomputed(net.a(input(turn)),
                                    [&](const Tensor& y) { return net.b(y); });
                     return square_loss(net.c(h));
                   },
                   {.units = kUnits, .steps = 3});
}

// One of b's parameters comes twice before the unit is complete.
TEST_F(Functions, AParameterIsReachedTwiceByNestedBackwards) {
  expect_agreement(
      make_net,
      [](nn::Module& m, const Turn& turn) {
        auto& net = as_net(m);
        Tensor h = net.a(input(turn));
        h = recomputed(
            h, [&](const Tensor& y) { return net.b(y) * net.b->extra; });
        h = recomputed(h, [&](const Tensor& y) { return y * net.b->gain; });
        h = recomputed(
            h, [&](const Tensor& y) { return y + net.b->gain * net.b->extra; });
        return square_loss(net.c(h));
      },
      {.units = kUnits, .steps = 3});
}

TEST_F(Functions, TheWholeModelIsRecomputedInBackward) {
  expect_agreement(make_net,
                   [](nn::Module& m, const Turn& turn) {
                     return square_loss(recomputed(
                         input(turn).requires_grad_(), [&](const Tensor& x) {
                           return as_net(m).forward(x);
                         }));
                   },
                   {.units = kUnits, .steps = 3});
}

TEST_F(Functions, CheckpointingByHandWithNoGrad) {
  expect_agreement(
      make_net,
      [](nn::Module& m, const Turn& turn) {
        auto& net = as_net(m);
        Tensor h;
        {
          torch::NoGradGuard no_grad;
          h = net.a(input(turn));
        }
        const Tensor middle = h.detach().requires_grad_();
        (square_loss(net.c(net.b(middle))) * turn.share).backward();
        const Tensor again = net.a(input(turn));
        return (again * middle.grad() / turn.share).sum();
      },
      {.units = kUnits, .steps = 3});
}

// Hooks -----------------------------------------------------------------------

TEST_F(Functions, AHookOnAMemberSeesThisRanksWholeGradient) {
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    Tensor seen;
    as_net(*model).b->f->weight.register_hook(
        [&](const Tensor& gradient) { seen = gradient.clone(); });
    plain_loss(*model, {world.rank(), 0, 1}).backward();
    Model plain = build(make_net);
    plain_loss(*plain, {world.rank(), 0, 1}).backward();
    expect_close(seen, as_net(*plain).b->f->weight.grad(), "seen by the hook");
  });
}

TEST_F(Functions, AHookOnAMemberScalesTheGradient) {
  expect_agreement(make_net, plain_loss,
                   {.units = kUnits, .before = [](nn::Module& m, int step) {
                      if (step > 0) return;
                      as_net(m).b->f->weight.register_hook(
                          [](const Tensor& gradient) { return gradient * 3; });
                    }});
}

TEST_F(Functions, AHookSetBeforeShardingStays) {
  const auto make_hooked = [] {
    Model model = make_net();
    as_net(*model).b->f->weight.register_hook(
        [](const Tensor& gradient) { return gradient * 3; });
    return model;
  };
  expect_agreement(make_hooked, plain_loss, {.units = kUnits});
}

TEST_F(Functions, AHookOnAShardScalesTheReducedGradient) {
  expect_agreement(make_net, plain_loss,
                   {.units = kUnits, .before = [](nn::Module& m, int step) {
                      if (step > 0) return;
                      m.named_parameters()["b.f.weight"].register_hook(
                          [](const Tensor& gradient) { return gradient * 3; });
                    }});
}

// An optimizer that steps in backward is such a hook.
class StepInBackward final : public torch::autograd::PostAccumulateGradHook {
 public:
  void operator()(const torch::autograd::Variable& shard) override {
    torch::NoGradGuard no_grad;
    shard.sub_(0.1 * shard.grad());
    shard.mutable_grad().reset();
  }
};

TEST_F(Functions, AHookAfterTheGradientOfAShardMayStepTheOptimizer) {
  on_ranks(2, [](const World& world) {
    Model stepped = build_sharded(world, make_net, kUnits);
    Model hooked = build_sharded(world, make_net, kUnits);
    for (const Tensor& shard : hooked->parameters()) {
      torch::autograd::impl::set_post_acc_grad_hooks(
          shard, std::make_unique<StepInBackward>());
    }
    const Optimizer optimizer = make_sgd(stepped->parameters());
    for (int step = 0; step < 2; ++step) {
      plain_loss(*hooked, {world.rank(), step, 1}).backward();
      optimizer->zero_grad();
      plain_loss(*stepped, {world.rank(), step, 1}).backward();
      optimizer->step();
    }
    expect_close(full_values(*hooked), full_values(*stepped), "value");
  });
}

TEST_F(Functions, AHookOnAShardCannotTakeANormSilently) {
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    model->named_parameters()["b.f.weight"].register_hook(
        [](const Tensor& gradient) { return gradient / gradient.norm(); });
    EXPECT_TRUE(says(message_of([&] {
                       plain_loss(*model, {world.rank(), 0, 1}).backward();
                     }),
                     "the gradient of the shard of parameter 'b.f.weight'"));
  });
}

TEST_F(Functions, AHookThatReadsAMemberGathersItInBackward) {
  expect_agreement(make_net,
                   [](nn::Module& m, const Turn& turn) {
                     auto& net = as_net(m);
                     const Tensor h = net.a(input(turn));
                     h.register_hook([&net](const Tensor& gradient) {
                       return gradient * net.b->gain.detach();
                     });
                     return square_loss(net.c(net.b(h)));
                   },
                   {.units = kUnits, .steps = 3});
}

// Threads ---------------------------------------------------------------------

TEST_F(Functions, BackwardRunsInAnotherThread) {
  expect_agreement(make_net,
                   [](nn::Module& m, const Turn& turn) {
                     const Tensor loss = plain_loss(m, turn);
                     std::thread([&] {
                       (plain_loss(m, later(turn, 4)) * turn.share).backward();
                     }).join();
                     return loss;
                   },
                   {.units = kUnits});
}

TEST_F(Functions, TwoThreadsInOneModelAreAnErrorAndNotACrash) {
  on_ranks(1, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    torch::NoGradGuard no_grad;
    const double want = plain_loss(*model, {0, 0, 1}).item<double>();
    std::atomic<int> wrong = 0;
    std::atomic<int> refused = 0;
    const auto run = [&] {
      torch::NoGradGuard none;
      for (int i = 0; i < 1000; ++i) {
        const std::string message = message_of([&] {
          wrong += plain_loss(*model, {0, 0, 1}).item<double>() != want;
        });
        if (message.empty()) continue;
        EXPECT_TRUE(says(message, "second thread"));
        ++refused;
      }
    };
    std::thread one(run), two(run);
    one.join();
    two.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(plain_loss(*model, {0, 0, 1}).item<double>(), want);
  });
}

TEST_F(Functions, AThreadThatEntersWhileAnOperatorRunsIsRefused) {
  on_ranks(1, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    auto unit = units_below(*model)[0];
    StorageOwner* const owners[] = {unit.get()};
    unit->before_read({"aten::mm", owners});
    std::thread([&] {
      torch::NoGradGuard no_grad;
      EXPECT_TRUE(says(message_of([&] { as_net(*model).b->gain.sum(); }),
                       "aten::sum on a second thread"));
    }).join();
    unit->after_read();
    std::thread([&] {
      torch::NoGradGuard no_grad;
      EXPECT_EQ(as_net(*model).b->gain.sum().item<double>(), 8);
    }).join();
  });
}

// Lost models -----------------------------------------------------------------

TEST_F(Functions, TheModelGoesBeforeBackwardAndItsShardsGetGradients) {
  const Tensors want = gradients_of_one_process(2, make_net, plain_loss);
  on_ranks(2, [&](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    std::vector<Tensor> shards = model->parameters();
    const auto names = model->named_parameters().keys();
    const Tensor loss = plain_loss(*model, {world.rank(), 0, 1});
    model.reset();
    loss.backward();
    for (size_t i = 0; i < shards.size(); ++i) {
      EXPECT_EQ(shards[i].grad().defined(), want.contains(names[i]))
          << names[i];
    }
  });
}

TEST_F(Functions, OnlyTheLossIsKept) {
  on_ranks(2, [](const World& world) {
    Tensor loss;
    const Tensor x = input(0, 0).requires_grad_();
    {
      Model model = build_sharded(world, make_net, kUnits);
      loss = square_loss(as_net(*model).forward(x));
    }
    loss.backward();
    loss.reset();
    Model plain = build(make_net);
    const Tensor y = input(0, 0).requires_grad_();
    square_loss(as_net(*plain).forward(y)).backward();
    expect_close(x.grad(), y.grad(), "gradient of the input");
  });
}

TEST_F(Functions, AMemberKeptBeyondItsModelCanBeRead) {
  on_ranks(2, [](const World& world) {
    Tensor kept;
    {
      Model model = build_sharded(world, make_net, kUnits);
      torch::NoGradGuard no_grad;
      plain_loss(*model, {0, 0, 1});
      kept = as_net(*model).a->f->weight;
    }
    Model plain = build(make_net);
    torch::NoGradGuard no_grad;
    expect_close(kept.clone(), as_net(*plain).a->f->weight, "kept member");
  });
}

// Several models --------------------------------------------------------------

struct PairImpl : nn::Module {
  std::shared_ptr<NetImpl> maker, judge;
  PairImpl() {
    maker = register_module("maker", std::make_shared<NetImpl>());
    judge = register_module("judge", std::make_shared<NetImpl>());
  }
};

Tensor pair_loss(nn::Module& m, const Turn& turn) {
  auto& pair = dynamic_cast<PairImpl&>(m);
  const Tensor made = torch::cat({pair.maker->forward(input(turn)),
                                  pair.maker->forward(input(later(turn, 2)))},
                                 1);
  return square_loss(pair.judge->forward(made)) +
         (pair.maker->c->weight * pair.judge->c->weight).sum();
}

TEST_F(Functions, TwoShardedModelsMeetInOneLossAndInOneOperator) {
  const Make make = [] { return std::make_shared<PairImpl>(); };
  const Tensors want = gradients_of_one_process(2, make, pair_loss);
  on_ranks(2, [&](const World& world) {
    Model model = build(make);
    auto& pair = dynamic_cast<PairImpl&>(*model);
    const auto options = options_for(init_device_mesh(world));
    shard(*pair.maker, options, kUnits);
    shard(*pair.judge, options, kUnits);
    pair_loss(*model, {world.rank(), 0, 1}).backward();
    expect_nothing_gathered(*model, "after backward");
    expect_close(full_gradients(world, *model), want, "gradient");
  });
}

}  // namespace
}  // namespace tessera::test
