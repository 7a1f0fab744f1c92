// Writes: refused on full parameters, noticed on shards, kept or thrown away by
// FullParameters.
#include <sstream>

#include "tests/support/net.h"
#include "tests/support/warm_reader.h"

namespace tessera::test {
namespace {

class Writes : public DoubleByDefault {
 protected:
  static void SetUpTestSuite() { warm_torch_reader(); }
};

void with_net(const std::function<void(const World&, NetImpl&)>& body) {
  on_ranks(2, [&](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    body(world, as_net(*model));
  });
}

struct Attempt {
  const char* op;         // as the error names it
  const char* parameter;  // the one that it names
  std::function<void(NetImpl&)> write;
};

const std::vector<Attempt>& attempts() {
  static const std::vector<Attempt> all = {
      {"aten::clamp_", "a.f.weight",
       [](NetImpl& n) { n.a->f->weight.clamp_(-0.1, 0.1); }},
      {"aten::mul_", "a.f.weight",
       [](NetImpl& n) { n.a->f->weight.data().mul_(2); }},
      {"aten::fill_", "a.f.weight",
       [](NetImpl& n) { n.a->f->weight[0].fill_(1); }},
      {"aten::zero_", "a.f.bias", [](NetImpl& n) { n.a->f->bias.zero_(); }},
      {"aten::copy_", "b.gain",
       [](NetImpl& n) { n.b->gain.copy_(torch::ones({8})); }},
      {"aten::copy_", "c.weight",
       [](NetImpl& n) {
         n.c->weight.t().copy_(torch::ones({8, 3}));
       }},
      {"aten::normal_", "a.f.weight",
       [](NetImpl& n) { n.a->f->weight.normal_(); }},
      {"aten::uniform_", "a.f.weight",
       [](NetImpl& n) { nn::init::uniform_(n.a->f->weight); }},
      {"aten::index_put_", "a.f.weight",
       [](NetImpl& n) {
         n.a->f->weight.index_put_({torch::tensor({0})}, torch::ones({6}));
       }},
      {"aten::t_", "a.f.weight", [](NetImpl& n) { n.a->f->weight.t_(); }},
      {"aten::resize_", "a.f.weight",
       [](NetImpl& n) { n.a->f->weight.resize_({96}); }},
      {"aten::set_", "a.f.weight",
       [](NetImpl& n) {
         n.a->f->weight.set_(torch::ones({8, 6}));
       }},
      // The output comes last, and is also an input that has gathered the unit.
      {"aten::add", "a.f.weight",
       [](NetImpl& n) {
         at::add_out(n.a->f->weight, n.a->f->weight, torch::ones({8, 6}));
       }},
      {"aten::add", "a.f.weight",
       [](NetImpl& n) {
         at::add_out(n.a->f->weight, torch::ones({8, 6}), torch::ones({8, 6}));
       }},
      {"aten::_foreach_mul_", "a.f.weight",
       [](NetImpl& n) {
         at::_foreach_mul_({n.a->f->weight, n.b->f->weight}, 2);
       }},
      {"aten::_foreach_add_", "b.f.weight",
       [](NetImpl& n) {
         at::_foreach_add_({torch::ones({8, 8}), n.b->f->weight}, 2);
       }},
      {"aten::max", "a.f.bias",
       [](NetImpl& n) {
         Tensor index = torch::empty({8}, torch::kLong);
         at::max_out(n.a->f->bias, index, torch::ones({8, 6}), 1);
       }},
  };
  return all;
}

TEST_F(Writes, ToAFullParameterAreRefusedByName) {
  with_net([](const World&, NetImpl& net) {
    torch::NoGradGuard no_grad;
    for (const Attempt& attempt : attempts()) {
      const std::string message = message_of([&] { attempt.write(net); });
      EXPECT_TRUE(says(message, attempt.op));
      EXPECT_TRUE(says(message, str("'", attempt.parameter, "'")))
          << attempt.op;
      EXPECT_TRUE(says(message, "FullParameters")) << attempt.op;
    }
  });
}

TEST_F(Writes, ARefusedWriteChangesNothing) {
  with_net([](const World&, NetImpl& net) {
    const Tensors before = full_values(net);
    torch::NoGradGuard no_grad;
    for (const Attempt& attempt : attempts()) {
      EXPECT_NE(message_of([&] { attempt.write(net); }), "") << attempt.op;
    }
    expect_close(full_values(net), before, "value");
    EXPECT_EQ(net.forward(input(0, 0)).size(1), 3);
  });
}

// FullParameters --------------------------------------------------------------

TEST_F(Writes, InsideFullParametersAreKept) {
  with_net([](const World& world, NetImpl& net) {
    {
      FullParameters full(net);
      torch::NoGradGuard no_grad;
      net.a->f->weight.fill_(2);
      net.named_parameters()["b.gain"].fill_(3);
    }
    const Tensors values = full_values(net);
    EXPECT_TRUE(values.at("a.f.weight").eq(2).all().item<bool>());
    EXPECT_TRUE(values.at("b.gain").eq(3).all().item<bool>());
    expect_nothing_gathered(net, "after the scope");
    plain_loss(net, {world.rank(), 0, 1}).backward();
  });
}

TEST_F(Writes, InsideFullParametersAreDiscarded) {
  with_net([](const World&, NetImpl& net) {
    const Tensors before = full_values(net);
    {
      FullParameters full(net, Write::discard);
      torch::NoGradGuard no_grad;
      for (Tensor& parameter : net.parameters()) parameter.fill_(2);
    }
    expect_close(full_values(net), before, "value");
  });
}

TEST_F(Writes, InsideFullParametersAreKeptWhenTheScopeEndsByAnException) {
  with_net([](const World&, NetImpl& net) {
    EXPECT_EQ(message_of([&] {
                FullParameters full(net);
                torch::NoGradGuard no_grad;
                net.a->gain.fill_(4);
                throw std::runtime_error("surgery failed");
              }),
              "surgery failed");
    expect_nothing_gathered(net, "after the scope");
    EXPECT_TRUE(full_values(net)["a.gain"].eq(4).all().item<bool>());
    EXPECT_TRUE(is_fully_sharded(net));
  });
}

TEST_F(Writes, FullParametersShowWholeTensorsInMembersAndDictionaries) {
  with_net([](const World&, NetImpl& net) {
    FullParameters full(net, Write::discard);
    EXPECT_TRUE(net.parameters()[0].is_same(net.a->gain));
    EXPECT_NE(net.a->f->weight.data_ptr<double>(), nullptr);
    EXPECT_EQ(nn::utils::parameters_to_vector(net.parameters()).numel(),
              6 * 8 + 8 * 3 + 8 * 8 + 8 * 3 + 8 * 3 + 3);
  });
}

TEST_F(Writes, FullParametersInsideInferenceModeIsAnError) {
  with_net([](const World&, NetImpl& net) {
    c10::InferenceMode inference;
    EXPECT_TRUE(
        says(message_of([&] { FullParameters full(net); }), "InferenceMode"));
  });
}

struct CopyImpl : nn::Cloneable<CopyImpl> {
  nn::Linear f{nullptr};
  CopyImpl() { reset(); }
  void reset() override { f = register_module("f", nn::Linear(6, 8)); }
};

TEST_F(Writes, CloneInsideFullParametersGivesAPlainModule) {
  on_ranks(2, [](const World& world) {
    Model model = build([] { return std::make_shared<CopyImpl>(); });
    fully_shard(*model, options_for(init_device_mesh(world)));
    Model copy;
    {
      FullParameters full(*model, Write::discard);
      static std::mutex mutex;  // clone() draws random numbers first
      const std::lock_guard lock(mutex);
      copy = model->clone();
    }
    EXPECT_FALSE(is_fully_sharded(*copy));
    expect_close(plain_values(*copy), full_values(*model), "value");
    EXPECT_EQ(dynamic_cast<CopyImpl&>(*copy).f(input(0, 0)).size(1), 8);
  });
}

// Outside of the scope a clone is made of parts, for `clone` of a shard is what
// moving averages call and must pass.
TEST_F(Writes, CloneOfAShardedModuleHoldsThisRanksParts) {
  on_ranks(2, [](const World& world) {
    Model model = build([] { return std::make_shared<CopyImpl>(); });
    fully_shard(*model, options_for(init_device_mesh(world)));
    const Model copy = model->clone();
    EXPECT_FALSE(is_fully_sharded(*copy));
    EXPECT_EQ(copy->named_parameters()["f.weight"].sizes(),
              (std::vector<int64_t>{4, 6}));
  });
}

// Members given other data ----------------------------------------------------

TEST_F(Writes, SetDataOfAMemberIsNamedAtTheNextTouch) {
  with_net([](const World& world, NetImpl& net) {
    net.a->f->weight.set_data(torch::ones({8, 6}));
    for (const auto& unit : units_below(net)) {
      EXPECT_EQ(unit->counts().gathers, 0);  // set_data reads nothing
    }
    const std::string message = message_of([&] {
      plain_loss(net, {world.rank(), 0, 1}).backward();
    });
    EXPECT_TRUE(says(message, "'a.f.weight'"));
    EXPECT_TRUE(says(message, "set_data"));
  });
}

// Shards ----------------------------------------------------------------------

// What `change` does to the parameters of one process and of ranks alike must
// be seen by the steps that follow.
void expect_change_is_seen(const std::function<void(nn::Module&)>& change) {
  expect_agreement(make_net, plain_loss,
                   {.units = kUnits,
                    .steps = 3,
                    .after = [&](nn::Module& m, int) { change(m); }});
}

TEST_F(Writes, ClampingParametersInPlace) {
  expect_change_is_seen([](nn::Module& m) {
    torch::NoGradGuard no_grad;
    for (Tensor& p : m.parameters()) p.clamp_(-0.2, 0.2);
  });
}

TEST_F(Writes, ClampingDataOfParameters) {
  expect_change_is_seen([](nn::Module& m) {
    for (const Tensor& p : m.parameters()) p.data().clamp_(-0.2, 0.2);
  });
}

TEST_F(Writes, SetDataOfParametersCopiesIntoPlace) {
  expect_change_is_seen([](nn::Module& m) {
    torch::NoGradGuard no_grad;
    for (Tensor& p : m.parameters()) p.set_data(p.detach() * 0.5);
  });
}

TEST_F(Writes, SetDataOfAnotherShapeIsRefusedByName) {
  with_net([](const World&, NetImpl& net) {
    Tensor shard = net.named_parameters()["a.f.weight"];
    EXPECT_TRUE(says(message_of([&] {
                       shard.set_data(torch::ones({8, 6}));
                     }),
                     "'a.f.weight'"));
  });
}

TEST_F(Writes, ToAnotherDtypeAfterShardingIsRefusedByName) {
  with_net([](const World& world, NetImpl& net) {
    EXPECT_TRUE(says(message_of([&] { net.to(torch::kFloat); }), "'a."));
    plain_loss(net, {world.rank(), 0, 1}).backward();
  });
}

TEST_F(Writes, ToTheSameDeviceTrainEvalAndZeroGradChangeNothing) {
  expect_change_is_seen([](nn::Module& m) {
    m.to(torch::kCPU);
    m.eval();
    m.train();
    m.zero_grad();
  });
}

TEST_F(Writes, SaveAndLoadOfAShardedModuleRestoreTheShards) {
  with_net([](const World&, NetImpl& net) {
    const Tensors before = full_values(net);
    auto self = std::static_pointer_cast<NetImpl>(net.shared_from_this());
    std::stringstream stream;
    torch::save(self, stream);
    {
      torch::NoGradGuard no_grad;
      for (Tensor& p : net.parameters()) p.zero_();
      (void)net.forward(input(0, 0));  // the root stays gathered
    }
    torch::load(self, stream);
    torch::NoGradGuard no_grad;
    expect_close(net.c->bias.clone(), before.at("c.bias"), "gathered again");
    expect_close(full_values(net), before, "value");
  });
}

TEST_F(Writes, LoadOfAWholeCheckpointIntoShardsIsNamed) {
  std::stringstream whole;
  torch::save(std::make_shared<NetImpl>(), whole);
  with_net([&](const World& world, NetImpl& net) {
    std::stringstream stream(whole.str());
    auto self = std::static_pointer_cast<NetImpl>(net.shared_from_this());
    const std::string message = message_of([&] {
      torch::load(self, stream);
      plain_loss(net, {world.rank(), 0, 1}).backward();
    });
    EXPECT_TRUE(says(message, "'a."));
    EXPECT_TRUE(says(message, "FullParameters"));
  });
}

TEST_F(Writes, LoadInsideFullParametersTakesAWholeCheckpoint) {
  Model plain = std::make_shared<NetImpl>();
  std::stringstream whole;
  torch::save(std::static_pointer_cast<NetImpl>(plain), whole);
  with_net([&](const World&, NetImpl& net) {
    std::stringstream stream(whole.str());
    auto self = std::static_pointer_cast<NetImpl>(net.shared_from_this());
    {
      FullParameters full(net);
      torch::load(self, stream);
    }
    expect_close(full_values(net), plain_values(*plain), "value");
  });
}

TEST_F(Writes, ThroughRawPointersNeedMarkChanged) {
  with_net([](const World&, NetImpl& net) {
    torch::NoGradGuard no_grad;
    const Tensor before = net.c->bias.clone();
    const Tensor part = local(net.named_parameters()["c.bias"]);
    double* data = part.data_ptr<double>();
    for (int64_t i = 0; i < part.numel(); ++i) data[i] += 1;
    mark_changed(net);
    expect_close(net.c->bias.clone(), before + 1, "gathered again");
  });
}

}  // namespace
}  // namespace tessera::test
