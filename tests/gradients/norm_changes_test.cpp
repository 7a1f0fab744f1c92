// set_norm_in_backward: what has changed gradients since backward is seen.
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/comm/distributed.h"
#include "tessera/optim/adamw.h"
#include "tessera/optim/grad_scaler.h"
#include "tests/gradients/norm_pair.h"

namespace tessera::test {
namespace {

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
    {"local().data()",
     [](nn::Module& model) {
       for_each_gradient(
           model, [](const Tensor& grad) { local(grad).data().add_(1); });
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

class Hook final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit Hook(std::function<void(const Tensor&)> call)
      : call_(std::move(call)) {}
  void operator()(const torch::autograd::Variable& shard) override {
    call_(shard);
  }

 private:
  std::function<void(const Tensor&)> call_;
};

// It is still under way when backward ends.
TEST(NormInBackward, SeesACollectiveThatAHookHasBegun) {
  on_ranks(2, [](const World& world) {
    const auto group = distributed::new_group(world);
    Pair pair(plain_options(world));
    std::vector<distributed::Work> works;
    pair.both([&](nn::Module& model) {
      torch::autograd::impl::set_post_acc_grad_hooks(
          shard_of(model, "a.f.weight"),
          std::make_unique<Hook>([&](const Tensor& shard) {
            works.push_back(
                distributed::all_reduce(local(shard.grad()), group));
          }));
    });
    pair.backward(world.rank());
    ASSERT_EQ(works.size(), 2U);
    for (auto& work : works) work.wait();
    expect_equal_norms(pair, "summed once more");
    EXPECT_FALSE(is_kept(pair.early));
  });
}

}  // namespace
}  // namespace tessera::test
