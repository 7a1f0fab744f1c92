// Shards and their gradients refuse what would silently see one rank's part.
#include "tests/support/net.h"

namespace tessera::test {
namespace {

using Shards = DoubleByDefault;

struct Reader {
  const char* name;
  std::function<void(Tensor)> read;
};

const std::vector<Reader>& local_reads() {
  static const std::vector<Reader> all = {
      {"norm", [](Tensor p) { p.norm(); }},
      {"vector_norm", [](Tensor p) { torch::linalg_vector_norm(p, 2); }},
      {"sum", [](Tensor p) { p.sum(); }},
      {"mean", [](Tensor p) { p.mean(); }},
      {"max", [](Tensor p) { p.max(); }},
      {"min", [](Tensor p) { p.min(); }},
      {"std", [](Tensor p) { p.std(); }},
      {"var", [](Tensor p) { p.var(); }},
      {"argmax", [](Tensor p) { p.argmax(); }},
      {"median", [](Tensor p) { p.median(); }},
      {"dot", [](Tensor p) { p.flatten().dot(p.flatten()); }},
      {"cat",
       [](Tensor p) {
         torch::cat({p.view(-1), p.view(-1)});
       }},
      {"stack",
       [](Tensor p) {
         torch::stack({p, p});
       }},
      {"mm", [](Tensor p) { p.mm(p.t()); }},
      {"matmul", [](Tensor p) { torch::matmul(p, p.t()); }},
      {"softmax", [](Tensor p) { p.softmax(0); }},
      {"cumsum", [](Tensor p) { p.cumsum(0); }},
      {"sort", [](Tensor p) { p.sort(); }},
      {"all",
       [](Tensor p) {
         p.isfinite();
         p.all();
       }},
      {"pow(2).sum", [](Tensor p) { p.square_().sum(); }},
      {"svd", [](Tensor p) { torch::linalg_svd(p); }},
      {"foreach_norm",
       [](Tensor p) {
         std::vector<Tensor> list = {p};
         at::_foreach_norm(list, 2);
       }},
      {"normal_", [](Tensor p) { p.normal_(); }},
      {"uniform_", [](Tensor p) { p.uniform_(); }},
      {"bernoulli_", [](Tensor p) { p.bernoulli_(0.5); }},
      {"init::xavier_uniform_", [](Tensor p) { nn::init::xavier_uniform_(p); }},
      {"init::normal_", [](Tensor p) { nn::init::normal_(p); }},
  };
  return all;
}

TEST_F(Shards, RefuseWhatWouldBeLocalByName) {
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    torch::NoGradGuard no_grad;
    for (const auto& [name, read] : local_reads()) {
      const Tensor shard = model->named_parameters()["a.f.weight"];
      const std::string message = message_of([&] { read(shard); });
      EXPECT_TRUE(says(message, "the shard of parameter 'a.f.weight'")) << name;
      EXPECT_TRUE(says(message, "clip_grad_norm_")) << name;
    }
  });
}

TEST_F(Shards, TheirGradientsRefuseTheSame) {
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    plain_loss(*model, {world.rank(), 0, 1}).backward();
    torch::NoGradGuard no_grad;
    for (const auto& [name, read] : local_reads()) {
      const Tensor gradient = model->named_parameters()["b.f.weight"].grad();
      EXPECT_TRUE(says(message_of([&] { read(gradient); }),
                       "the gradient of the shard of parameter 'b.f.weight'"))
          << name;
    }
  });
}

TEST_F(Shards, ElementwiseOperatorsPass) {
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    plain_loss(*model, {world.rank(), 0, 1}).backward();
    torch::NoGradGuard no_grad;
    for (Tensor& p : model->parameters()) {
      EXPECT_EQ((p * 2 + p.pow(2) - p.abs().sqrt()).sizes(), p.sizes());
      Tensor average = p.clone().mul_(0.9).add_(p, 0.1);
      average.lerp_(p, 0.5).addcdiv_(p, p.exp()).addcmul_(p, p, 0.1);
      EXPECT_EQ(torch::where(p > 0, p, -p).sizes(), p.sizes());
      EXPECT_EQ(p.to(torch::kFloat).scalar_type(), torch::kFloat);
      p.clamp_(-1, 1).sign_().zero_().fill_(1).copy_(average);
      p.set_requires_grad(true);
      if (!p.grad().defined()) continue;
      p.add_(p.grad(), -0.1);
      p.mutable_grad().mul_(2).nan_to_num_().zero_();
    }
    std::vector<Tensor> all = model->parameters();
    at::_foreach_mul_(all, 2);
    at::_foreach_add_(all, at::_foreach_mul(all, 0.5));
  });
}

TEST_F(Shards, LocalGivesThisRanksPartToThoseWhoMeanIt) {
  on_ranks(3, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    const Tensor shard = model->named_parameters()["a.f.weight"];
    const Tensor whole = full_values(*model)["a.f.weight"];
    const double mine = local(shard).pow(2).sum().item<double>();
    EXPECT_NEAR(mean_over_ranks(world, mine) * world.size(),
                whole.pow(2).sum().item<double>(), 1e-9);
    EXPECT_EQ(gated_storage_of(local(shard)), nullptr);
    EXPECT_EQ(spread_of(shard)->global_sizes, (std::vector<int64_t>{8, 6}));
  });
}

TEST_F(Shards, UtilitiesOfTorchThatWouldBeLocalAreRefused) {
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    plain_loss(*model, {world.rank(), 0, 1}).backward();
    EXPECT_TRUE(says(message_of([&] {
                       nn::utils::clip_grad_norm_(model->parameters(), 0.01);
                     }),
                     "the gradient of the shard of parameter"));
    EXPECT_TRUE(says(message_of([&] {
                       (void)nn::utils::parameters_to_vector(
                           model->parameters());
                     }),
                     "the shard of parameter"));
    nn::utils::clip_grad_value_(model->parameters(), 0.01);  // elementwise
  });
}

TEST_F(Shards, NormsOverParametersInTheLossAreRefused) {
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    EXPECT_TRUE(says(message_of([&] {
                       Tensor loss = plain_loss(*model, {world.rank(), 0, 1});
                       for (const Tensor& p : model->parameters())
                         loss = loss + p.norm();
                     }),
                     "the shard of parameter"));
  });
}

// Squares are elementwise and give a plain tensor, so that their sum is this
// rank's own: the loss is local, but the gradients are right.
TEST_F(Shards, SquaresOverParametersInTheLossGiveTheRightGradients) {
  const Loss loss = [](nn::Module& m, const Turn& turn) {
    Tensor sum = plain_loss(m, turn);
    for (const Tensor& p : m.parameters()) sum = sum + 0.1 * p.pow(2).sum();
    return sum;
  };
  const Tensors want = gradients_of_one_process(2, make_net, loss);
  on_ranks(2, [&](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    loss(*model, {world.rank(), 0, 1}).backward();
    expect_close(full_gradients(world, *model), want, "gradient");
  });
}

// Memory ----------------------------------------------------------------------

TEST_F(Shards, ZeroGradFreesTheFlatGradient) {
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    plain_loss(*model, {world.rank(), 0, 1}).backward();
    const auto flat_gradients = [&] {
      int64_t count = 0;
      for (const auto& unit : units_below(*model)) {
        for (const auto& group : unit->groups()) {
          count += group->master()->grad().defined();
        }
      }
      return count;
    };
    EXPECT_EQ(flat_gradients(), 3);
    model->zero_grad();
    EXPECT_EQ(flat_gradients(), 0);
  });
}

TEST_F(Shards, ZeroGradInPlaceKeepsTheGradientAtZero) {
  expect_agreement(
      make_net, plain_loss,
      {.units = kUnits, .steps = 3, .before = [](nn::Module& m, int step) {
         m.zero_grad(step % 2 == 0);
       }});
}

TEST_F(Shards, GradientsAreLeavesThatZeroGradCanDetach) {
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    const Optimizer sgd = make_sgd(model->parameters());
    plain_loss(*model, {world.rank(), 0, 1}).backward();
    sgd->zero_grad(/*set_to_none=*/false);
    for (const Tensor& p : model->parameters()) {
      if (!p.grad().defined()) continue;
      EXPECT_FALSE(p.grad().is_view());
      EXPECT_TRUE(local(p.grad()).eq(0).all().item<bool>());
    }
  });
}

TEST_F(Shards, AGradientTakenAwayByHandIsNotAddedTo) {
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    plain_loss(*model, {world.rank(), 0, 1}).backward();
    const Tensors first = full_gradients(world, *model);
    model->named_parameters()["a.gain"].mutable_grad().reset();
    plain_loss(*model, {world.rank(), 0, 1}).backward();
    const Tensors second = full_gradients(world, *model);
    expect_close(second.at("a.gain"), first.at("a.gain"), "fresh");
    expect_close(second.at("b.gain"), first.at("b.gain") * 2, "added to");
  });
}

}  // namespace
}  // namespace tessera::test
