// What a full parameter shows to those who read it, and when it is gathered.
#include <torch/library.h>

#include <sstream>

#include "tests/support/net.h"

namespace tessera::test {
namespace {

using Reads = DoubleByDefault;

int64_t gathers_of(nn::Module& module) {
  int64_t sum = 0;
  for (const auto& unit : units_below(module)) sum += unit->counts().gathers;
  return sum;
}

void reshard_all(nn::Module& module) {
  for (const auto& named : named_modules(module)) {
    if (is_fully_sharded(*named.module)) reshard(*named.module);
  }
}

// Runs `body` on two ranks with a sharded net and the values it must show.
void with_net(
    const std::function<void(const World&, NetImpl&, Tensors&)>& body) {
  Model plain = build(make_net);
  const Tensors shared = plain_values(*plain);
  on_ranks(2, [&](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    Tensors want = shared;
    body(world, as_net(*model), want);
  });
}

TEST_F(Reads, ATypedPointerToAShardedParameterRaises) {
  with_net([](const World&, NetImpl& net, Tensors&) {
    const Tensor& w = net.a->f->weight;
    EXPECT_TRUE(
        says(message_of([&] { (void)w.data_ptr<double>(); }), "not allocated"));
    EXPECT_TRUE(says(message_of([&] { (void)w.accessor<double, 2>(); }),
                     "not allocated"));
    EXPECT_EQ(w.data_ptr(), nullptr);
  });
}

TEST_F(Reads, ViewsAndMetadataDoNotGather) {
  with_net([](const World&, NetImpl& net, Tensors&) {
    const Tensor& w = net.a->f->weight;
    const std::vector<Tensor> views = {w.t(),
                                       w.view({6, 8}),
                                       w.narrow(0, 1, 2),
                                       w[1],
                                       w.unsqueeze(0),
                                       w.expand({2, 8, 6}),
                                       w.detach(),
                                       w.data(),
                                       w.diagonal(),
                                       w.unfold(0, 2, 1),
                                       at::alias(w),
                                       w.flatten(),
                                       w.chunk(2)[1],
                                       w.split(3)[2],
                                       w.mT(),
                                       w.reshape({48}),
                                       w.permute({1, 0}),
                                       w.as_strided({2, 2}, {6, 1}),
                                       w.variable_data()};
    const std::vector<Tensor> likes = {torch::empty_like(w),
                                       torch::zeros_like(w), w.new_empty({2})};
    EXPECT_TRUE(w.is_contiguous());
    EXPECT_EQ(w.numel() + w.size(0) + w.stride(0) + w.dim(), 48 + 8 + 6 + 2);
    EXPECT_TRUE(torch::_has_compatible_shallow_copy_type(w, w));
    EXPECT_EQ(gathers_of(net), 0);
  });
}

TEST_F(Reads, ToAndCpuGatherWhenTheyReturnTheParameterItself) {
  with_net([](const World&, NetImpl& net, Tensors& want) {
    const Tensor same = net.a->f->weight.to(torch::kCPU);
    EXPECT_TRUE(same.is_same(net.a->f->weight));
    EXPECT_TRUE(units_below(*net.a)[0]->gathered());
    reshard_all(net);
    const Tensor w = net.a->f->weight.cpu().contiguous();
    EXPECT_EQ(w.data_ptr<double>()[5], want["a.f.weight"][0][5].item<double>());
    reshard_all(net);
    const Tensor row = net.a->f->weight[1].cpu();
    EXPECT_EQ(row.data_ptr<double>()[5],
              want["a.f.weight"][1][5].item<double>());
  });
}

// LibTorch answers it inline, without an operator that could be met.
TEST_F(Reads, ContiguousOfWhatIsContiguousDoesNotGatherAndItsPointerRaises) {
  with_net([](const World&, NetImpl& net, Tensors&) {
    const Tensor w = net.a->f->weight.contiguous();
    EXPECT_TRUE(w.is_same(net.a->f->weight));
    EXPECT_TRUE(
        says(message_of([&] { (void)w.data_ptr<double>(); }), "not allocated"));
    EXPECT_EQ(gathers_of(net), 0);
  });
}

TEST_F(Reads, PrintingAMemberShowsTheWholeParameter) {
  with_net([](const World&, NetImpl& net, Tensors& want) {
    std::ostringstream got, expected;
    got << net.a->f->weight;
    expected << want["a.f.weight"];
    EXPECT_EQ(got.str(), expected.str());
    got << net;  // a module prints itself without gathering
  });
}

using Read = std::function<Tensor(const Tensor&)>;

// Each gives back the parameter by another road.
const std::vector<std::pair<const char*, Read>>& roads() {
  static const std::vector<std::pair<const char*, Read>> all = {
      {"clone", [](const Tensor& w) { return w.clone(); }},
      {"to_sparse", [](const Tensor& w) { return w.to_sparse().to_dense(); }},
      {"to_sparse_csr",
       [](const Tensor& w) { return w.to_sparse_csr().to_dense(); }},
      {"to_mkldnn",
       [](const Tensor& w) {
         return w.to(torch::kFloat).to_mkldnn().to_dense();
       }},
      {"quantize",
       [](const Tensor& w) {
         return at::quantize_per_tensor(w.to(torch::kFloat), 1e-7, 0,
                                        torch::kQInt32)
             .dequantize();
       }},
      {"to(float)", [](const Tensor& w) { return w.to(torch::kFloat); }},
      {"view_as_complex",
       [](const Tensor& w) {
         return torch::view_as_real(torch::view_as_complex(w.view({8, 3, 2})))
             .view({8, 6})
             .clone();
       }},
      {"view(dtype)",
       [](const Tensor& w) {
         return w.view(torch::kLong).view(torch::kDouble).clone();
       }},
      {"unfold",
       [](const Tensor& w) { return w.unfold(0, 1, 1).squeeze(-1).clone(); }},
      {"contiguous", [](const Tensor& w) { return w.t().contiguous().t(); }},
      {"fft",
       [](const Tensor& w) {
         return torch::real(torch::fft_ifft(torch::fft_fft(w)));
       }},
      {"unbind", [](const Tensor& w) { return torch::stack(w.unbind(0)); }},
      {"tensor_split",
       [](const Tensor& w) { return torch::cat(w.tensor_split(3)); }},
      {"expand",
       [](const Tensor& w) {
         return w.expand({2, 8, 6}).mean(0);
       }},
      {"where", [](const Tensor& w) { return torch::where(w > 0, w, w); }},
      {"svd",
       [](const Tensor& w) {
         const auto [u, s, v] = torch::linalg_svd(w, false);
         return u.mm(torch::diag(s)).mm(v);
       }},
      {"alias", [](const Tensor& w) { return at::alias(w).clone(); }},
      {"dropout in evaluation",
       [](const Tensor& w) { return torch::dropout(w, 0.5, false) + 0; }},
      {"lift_fresh", [](const Tensor& w) { return at::lift_fresh(w).clone(); }},
      {"variable_data", [](const Tensor& w) { return w.variable_data() + 0; }},
      {"index", [](const Tensor& w) { return w.index({torch::arange(8)}); }},
      {"cdist",
       [](const Tensor& w) { return w + 0 * torch::cdist(w, w).sum(); }},
      {"einsum",
       [](const Tensor& w) {
         return torch::einsum("ij,jk->ik", {w, torch::eye(6)});
       }},
      {"broadcast_tensors",
       [](const Tensor& w) { return torch::broadcast_tensors({w})[0] + 0; }},
      {"copy_ to a plain tensor",
       [](const Tensor& w) {
         return torch::empty({8, 6}).copy_(w);
       }},
      {"out=",
       [](const Tensor& w) {
         Tensor out = torch::empty({8, 6});
         return at::mul_out(out, w, torch::ones({1}));
       }},
  };
  return all;
}

TEST_F(Reads, EveryRoadLeadsToTheWholeParameter) {
  with_net([](const World&, NetImpl& net, Tensors& want) {
    torch::NoGradGuard no_grad;
    for (const auto& [name, read] : roads()) {
      reshard_all(net);
      expect_close(read(net.a->f->weight), want["a.f.weight"], name, 1e-6);
    }
    reshard_all(net);
    EXPECT_TRUE(net.a->f->weight.equal(want["a.f.weight"]));
    reshard_all(net);
    EXPECT_TRUE(net.a->f->weight.allclose(want["a.f.weight"]));
  });
}

TEST_F(Reads, OneOperatorReadsSeveralUnits) {
  with_net([](const World&, NetImpl& net, Tensors& want) {
    torch::NoGradGuard no_grad;
    const std::vector<Tensor> three = {net.a->f->weight, net.b->f->weight,
                                       net.c->weight};
    const std::vector<Tensor> whole = {want["a.f.weight"], want["b.f.weight"],
                                       want["c.weight"]};
    const auto flat = [](const std::vector<Tensor>& list) {
      std::vector<Tensor> views;
      for (const Tensor& tensor : list) views.push_back(tensor.flatten());
      return torch::cat(views);
    };
    expect_close(flat(three), flat(whole), "cat");
    expect_close(torch::block_diag(three), torch::block_diag(whole),
                 "block_diag");
    expect_close(at::_foreach_norm(three, 2)[1], whole[1].norm(), "foreach");
    expect_close(torch::mm(three[1], three[0]), whole[1].mm(whole[0]), "mm");
    expect_close(torch::einsum("ij,jk->ik", {three[1], three[0]}),
                 whole[1].mm(whole[0]), "einsum");
  });
}

TEST_F(Reads, AnOperatorOverTwoUnitsGivesBothTheirGradients) {
  expect_agreement(
      make_net,
      [](nn::Module& m, const Turn& turn) {
        auto& net = as_net(m);
        const Tensor both =
            torch::cat({net.a->f->weight.flatten(), net.b->f->weight.flatten(),
                        net.c->weight.flatten()});
        return plain_loss(m, turn) +
               net.b->f->weight.mm(net.a->f->weight).pow(2).mean() +
               both.pow(2).mean();
      },
      {.units = kUnits});
}

TEST_F(Reads, ViewsTakenInForwardAreGoodAfterOtherUnitsWereRead) {
  expect_agreement(make_net,
                   [](nn::Module& m, const Turn& turn) {
                     auto& net = as_net(m);
                     const Tensor w = net.a->f->weight;
                     const Tensor k = w.t(), s = w[1], c = w.chunk(2)[1];
                     const Tensor q = w.as_strided({2, 2}, {6, 1});
                     const Tensor i = w.index({torch::tensor({0, 2})});
                     const Tensor one = w.index_select(1, torch::tensor({3}));
                     const Tensor loss = plain_loss(m, turn);
                     (void)net.b->f->weight.sum();
                     return loss + k.mm(w).sum() + s.pow(2).sum() +
                            c.sum() * q.prod() + i.sum() + one.norm() +
                            w.split(3)[1].std();
                   },
                   {.units = kUnits});
}

TEST_F(Reads, AViewKeptAcrossBackwardAndStepShowsTheNewWeight) {
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    const Optimizer sgd = make_sgd(model->parameters());
    const Tensor kept = as_net(*model).a->f->weight.t();
    plain_loss(*model, {world.rank(), 0, 1}).backward();
    sgd->step();
    const Tensor want = full_values(*model)["a.f.weight"];
    torch::NoGradGuard no_grad;
    expect_close(kept.clone(), want.t(), "kept view");
  });
}

TEST_F(Reads, WeightsInTheLossByItemDataDetachAndNorm) {
  expect_agreement(
      make_net,
      [](nn::Module& m, const Turn& turn) {
        auto& net = as_net(m);
        const Tensor loss = plain_loss(m, turn) *
                            net.b->gain[0].item<double>() *
                            net.a->f->weight.max().item<double>();
        return loss * net.a->f->weight.data().mean() +
               (net.b->f->weight.detach() * net.c->weight.data().sum()).sum() *
                   net.a->gain.sum() +
               0.1 * (net.a->f->weight.pow(2).sum() + net.c->weight.norm());
      },
      {.units = kUnits, .steps = 3});
}

TEST_F(Reads, GatheredGivesAPlainTensorForOnesOwnKernel) {
  with_net([](const World&, NetImpl& net, Tensors& want) {
    const Tensor w = gathered(net.a->f->weight);
    EXPECT_EQ(gated_storage_of(w), nullptr);
    EXPECT_FALSE(w.requires_grad());
    EXPECT_TRUE(w.equal(want["a.f.weight"]));
    EXPECT_EQ(w.data_ptr<double>()[7], want["a.f.weight"][1][1].item<double>());
    EXPECT_TRUE(gathered(net.a->f->weight.t()).equal(want["a.f.weight"].t()));
    const Tensor plain = torch::ones({2});
    EXPECT_TRUE(gathered(plain).equal(plain));
  });
}

TEST_F(Reads, UnshardGathersOneUnitAndReshardFreesIt) {
  with_net([](const World&, NetImpl& net, Tensors& want) {
    const auto unit = units_below(*net.a)[0];
    unshard(*net.a);
    EXPECT_TRUE(unit->gathered());
    EXPECT_EQ(gathers_of(net), 1);
    EXPECT_EQ(net.a->f->weight.data_ptr<double>()[0],
              want["a.f.weight"][0][0].item<double>());
    reshard(*net.a);
    EXPECT_FALSE(unit->gathered());
    EXPECT_EQ(net.a->f->weight.data_ptr(), nullptr);
    expect_close(net.forward(input(0, 0)).detach(),
                 net.forward(input(0, 0)).detach(), "forward afterwards");
  });
}

TEST_F(Reads, VersionCountersOfMembersNeverMove) {
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    const Tensor w = as_net(*model).a->f->weight;
    const auto before = w._version();
    const Optimizer sgd = make_sgd(model->parameters());
    for (int step = 0; step < 2; ++step) {
      plain_loss(*model, {world.rank(), step, 1}).backward();
      sgd->step();
    }
    EXPECT_EQ(w._version(), before);
    EXPECT_GT(model->parameters()[0]._version(), 0);
  });
}

// A user's own operator that runs modules inside meets the gate again there.
std::function<Tensor(const Tensor&)>& body_of_operator() {
  thread_local std::function<Tensor(const Tensor&)> body;
  return body;
}

TORCH_LIBRARY(tessera_gate_test, library) {
  library.def("run(Tensor w) -> Tensor",
              [](const Tensor& w) { return body_of_operator()(w); });
}

TEST_F(Reads, AUsersOperatorRunsModulesInside) {
  const auto run = c10::Dispatcher::singleton()
                       .findSchemaOrThrow("tessera_gate_test::run", "")
                       .typed<Tensor(const Tensor&)>();
  expect_agreement(make_net,
                   [run](nn::Module& m, const Turn& turn) {
                     auto& net = as_net(m);
                     body_of_operator() = [&](const Tensor& w) {
                       return net.c(net.b(torch::tanh(input(turn).mm(w.t()))));
                     };
                     return square_loss(run.call(net.a->f->weight));
                   },
                   {.units = kUnits});
}

}  // namespace
}  // namespace tessera::test
