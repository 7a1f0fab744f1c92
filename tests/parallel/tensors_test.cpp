// Memory, layouts and dtypes of gradients; outputs; buffers.
#include <cmath>
#include <map>
#include <tuple>

#include "tessera/optim/clip_grad_norm.h"
#include "tests/parallel/support.h"

namespace tessera::test {
namespace {

using Ddp = DistributedDataParallel<std::shared_ptr<ChainImpl>>;

class TensorsTest : public DoubleByDefault {};

Tensor loss_of(ChainImpl& model, const Turn& turn) {
  return model.forward(batch(turn.rank, turn.step)).square().mean();
}

TEST_F(TensorsTest, GradientsKeepTheirMemoryOrAreInBuckets) {
  on_ranks(2, [](const World& world) {
    for (const auto memory : {GradientMemory::own, GradientMemory::bucket}) {
      const Model model = build(make_chain);
      Ddp ddp(as_chain(model),
              options_over(world, {.gradient_memory = memory}));
      std::vector<Tensor> first;
      for (int step = 0; step < 3; ++step) {
        model->zero_grad(/*set_to_none=*/false);
        ddp(batch(world.rank(), step)).sum().backward();
        // Buckets are built anew once, behind the first pass.
        if (step == 1) {
          for (auto& p : model->parameters()) first.push_back(p.grad());
        }
      }
      const auto storage = [](const Tensor& tensor) {
        return tensor.storage().unsafeGetStorageImpl();
      };
      const auto parameters = model->parameters();
      for (size_t i = 0; i < parameters.size(); ++i) {
        EXPECT_EQ(parameters[i].grad().data_ptr(), first[i].data_ptr());
        EXPECT_EQ(storage(parameters[i].grad()) == storage(first[0]),
                  i == 0 || memory == GradientMemory::bucket);
      }
    }
  });
}

TEST_F(TensorsTest, KeepsAParametersLayout) {
  on_ranks(2, [](const World& world) {
    struct NetImpl : nn::Module {
      Tensor turned = register_parameter("turned", noise(3, {4, 6}).t());
      Tensor forward(const Tensor& x) { return torch::tanh(x.matmul(turned)); }
    };
    const auto net = std::make_shared<NetImpl>();
    DistributedDataParallel ddp(
        net, options_over(world, {.gradient_memory = GradientMemory::bucket}));
    ddp(batch(world.rank(), 0)).sum().backward();
    EXPECT_EQ(net->turned.grad().strides(), net->turned.strides());
    NetImpl alone;
    for (int rank = 0; rank < 2; ++rank) {
      (alone.forward(batch(rank, 0)).sum() / 2).backward();
    }
    expect_close(net->turned.grad(), alone.turned.grad(), "gradient");
  });
}

TEST_F(TensorsTest, DtypesHaveBucketsOfTheirOwn) {
  on_ranks(2, [](const World& world) {
    struct NetImpl : nn::Module {
      Tensor a = register_parameter("a", torch::ones({6}, torch::kFloat));
      Tensor b = register_parameter("b", torch::ones({6}, torch::kDouble));
      Tensor c = register_parameter("c", torch::ones({6}, torch::kFloat));
      Tensor forward(const Tensor& x) { return x * a * b * c; }
    };
    const auto net = std::make_shared<NetImpl>();
    DistributedDataParallel ddp(net, options_over(world));
    for (int step = 0; step < 2; ++step) {
      net->zero_grad();
      ddp(torch::full({1, 6}, 0.1 * (1 + world.rank()))).sum().backward();
      for (const Tensor& p : net->parameters()) {
        EXPECT_EQ(p.grad().scalar_type(), p.scalar_type());
        // A float would be off by 1e-9.
        const double off = p.scalar_type() == torch::kDouble ? 1e-16 : 1e-8;
        EXPECT_TRUE(p.grad().sub(0.15).abs().le(off).all().item<bool>())
            << p.grad();
      }
    }
  });
}

TEST_F(TensorsTest, TiedWeightsAreOneParameter) {
  struct TiedNetImpl : nn::Module {
    nn::Linear a{nullptr};
    Tensor again;
    TiedNetImpl() {
      a = register_module("a", nn::Linear(6, 6));
      again = register_parameter("again", a->weight);
    }
    Tensor forward(const Tensor& x) {
      return torch::linear(torch::tanh(a(x)), again);
    }
  };
  const auto make = [] { return std::make_shared<TiedNetImpl>(); };
  const auto alone = build(make);
  for (int rank = 0; rank < 2; ++rank) {
    auto& net = dynamic_cast<TiedNetImpl&>(*alone);
    (net.forward(batch(rank, 0)).sum() / 2).backward();
  }
  on_ranks(2, [&](const World& world) {
    const auto net = std::dynamic_pointer_cast<TiedNetImpl>(build(make));
    DistributedDataParallel ddp(net, options_over(world));
    ddp(batch(world.rank(), 0)).sum().backward();
    expect_close(plain_gradients(*net), plain_gradients(*alone), "gradients");
  });
}

TEST_F(TensorsTest, SeveralOutputsOfAnyKindReduce) {
  struct Impl : ChainImpl {
    std::tuple<Tensor, std::map<std::string, Tensor>, int> forward(
        const Tensor& x) {
      const Tensor hidden = torch::tanh(last(x));
      return {hidden, {{"y", first(torch::tanh(middle(hidden)))}}, 3};
    }
  };
  const Model plain = build(make_chain);
  const Tensors want = mean_gradients(
      2,
      [](ChainImpl& m, int rank) {
        return loss_of(m, {rank, 0, 1}) +
               torch::tanh(m.last(batch(rank, 0))).sum();
      },
      plain);
  on_ranks(2, [&](const World& world) {
    const auto model = std::dynamic_pointer_cast<Impl>(
        build([] { return std::make_shared<Impl>(); }));
    DistributedDataParallel ddp(
        model, options_over(world, {.bucket_cap_mib = kSmallBuckets}));
    auto [hidden, rest, number] = ddp(batch(world.rank(), 0));
    EXPECT_EQ(number, 3);
    // An output may be written to, as without the wrapper.
    rest.at("y").mul_(1.0);
    (rest.at("y").square().mean() + hidden.sum()).backward();
    expect_close(plain_gradients(*model), want, "gradients");
  });
}

TEST_F(TensorsTest, ClippingSeesTheSameNormOnAllRanks) {
  const Model plain = build(make_chain);
  const Tensors want = mean_gradients(
      2,
      [](ChainImpl& m, int rank) {
        return loss_of(m, {rank, 0, 1});
      },
      plain);
  double squares = 0;
  for (const auto& [name, gradient] : want) {
    squares += gradient.square().sum().item<double>();
  }
  on_ranks(2, [&](const World& world) {
    const Model model = build(make_chain);
    Ddp ddp(as_chain(model), options_over(world));
    ddp(batch(world.rank(), 0)).square().mean().backward();
    const Tensor norm = clip_grad_norm_(model->parameters(), 0.01);
    EXPECT_NEAR(norm.item<double>(), std::sqrt(squares), 1e-9);
  });
}

TEST_F(TensorsTest, ValuesOfAnySizeAndDtypeComeFromRankZero) {
  struct MixedImpl : nn::Module {
    MixedImpl() {
      register_parameter("w", torch::ones({3}));
      register_buffer("flags", torch::zeros({3}, torch::kBool));
      register_buffer("half", torch::zeros({5}, torch::kHalf));
      register_buffer("none", torch::zeros({0}));
      register_buffer("numbers", torch::zeros({2, 2}, torch::kComplexDouble));
      register_buffer("one", torch::zeros({}, torch::kInt));
    }
    Tensor forward(const Tensor& x) { return x; }
  };
  on_ranks(3, [](const World& world) {
    const auto net = std::make_shared<MixedImpl>();
    for (Tensor& buffer : net->buffers()) {
      buffer.fill_(world.rank() == 0 ? 1 : 0);
    }
    const DistributedDataParallel ddp(net, options_over(world));
    for (const auto& item : net->named_buffers()) {
      EXPECT_TRUE(item.value().eq(1).all().item<bool>()) << item.key();
    }
  });
}

TEST_F(TensorsTest, NarrowComplexAndEmptyParametersAreReduced) {
  struct MixedImpl : nn::Module {
    Tensor none = register_parameter("none", torch::ones({0, 6}));
    Tensor narrow =
        register_parameter("narrow", torch::ones({6}, torch::kBFloat16));
    Tensor turned =
        register_parameter("turned", torch::ones({6}, torch::kComplexDouble));
    Tensor forward(const Tensor& x) {
      return x * narrow * torch::real(turned) + none.sum();
    }
  };
  on_ranks(3, [](const World& world) {
    for (const auto memory : {GradientMemory::own, GradientMemory::bucket}) {
      const auto net = std::make_shared<MixedImpl>();
      DistributedDataParallel ddp(
          net, options_over(world, {.gradient_memory = memory}));
      for (int step = 0; step < 3; ++step) {
        net->zero_grad();
        ddp(torch::full({1, 6}, 1.0 + world.rank())).sum().backward();
        // Means of 1, 2 and 3; thirds in 8 bits add up to within one of them.
        EXPECT_LE((net->narrow.grad() - 2).abs().max().item<double>(), 2e-2);
        EXPECT_LE(
            (torch::real(net->turned.grad()) - 2).abs().max().item<double>(),
            1e-12);
        EXPECT_EQ(net->none.grad().sizes(), net->none.sizes());
      }
    }
  });
}

TEST_F(TensorsTest, ASequentialIsAModuleAsWell) {
  const auto make = [] {
    return std::make_shared<nn::SequentialImpl>(nn::Linear(6, 5), nn::Tanh(),
                                                nn::Linear(5, 2));
  };
  const auto alone = build(make);
  for (int rank = 0; rank < 2; ++rank) {
    auto& net = dynamic_cast<nn::SequentialImpl&>(*alone);
    (net.forward(batch(rank, 0)).sum() / 2).backward();
  }
  on_ranks(2, [&](const World& world) {
    nn::Sequential net(
        std::dynamic_pointer_cast<nn::SequentialImpl>(build(make)));
    DistributedDataParallel ddp(net, options_over(world));
    ddp(batch(world.rank(), 0)).sum().backward();
    expect_close(plain_gradients(*net), plain_gradients(*alone), "gradients");
  });
}

TEST_F(TensorsTest, AnAxisOfAMeshAveragesOverItsRanksAlone) {
  on_ranks(4, [](const World& world) {
    const auto mesh =
        init_device_mesh(world, {.shape = {2, 2}, .axes = {"dp", "other"}});
    Ddp ddp(as_chain(build(make_chain)), {.mesh = mesh["dp"]});
    ddp(batch(world.rank(), 0)).square().mean().backward();
    const Model alone = build(make_chain);
    for (const int rank : mesh["dp"].ranks()) {
      (loss_of(dynamic_cast<ChainImpl&>(*alone), {rank, 0, 1}) / 2).backward();
    }
    expect_close(plain_gradients(*ddp.module()), plain_gradients(*alone),
                 "gradients");
  });
}

TEST_F(TensorsTest, AParameterThatIsAnOutputKeepsNoHooks) {
  struct TableImpl : nn::Module {
    Tensor table = register_parameter("table", torch::ones({6}));
    Tensor forward() { return table; }
  };
  on_ranks(2, [](const World& world) {
    const auto net = std::make_shared<TableImpl>();
    DistributedDataParallel ddp(net, options_over(world));
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      (ddp() * (1.0 + world.rank())).sum().backward();
      EXPECT_TRUE(net->table.grad().eq(1.5).all().item<bool>());
    }
    EXPECT_TRUE(torch::autograd::impl::hooks(net->table).empty());
  });
}

TEST_F(TensorsTest, BuffersAreThoseOfRankZero) {
  struct CountingImpl : ChainImpl {
    Tensor mean = register_buffer("mean", torch::zeros({6}));
    Tensor calls = register_buffer("calls", torch::zeros({}, torch::kLong));
    Tensor forward(const Tensor& x) {
      const torch::NoGradGuard no_grad;
      mean.copy_(x.mean(0));
      calls += 1;
      const torch::AutoGradMode grad(true);
      return ChainImpl::forward(x);
    }
  };
  for (const auto sync : {BufferSync::before_forward, BufferSync::none}) {
    on_ranks(3, [&](const World& world) {
      const auto model = std::dynamic_pointer_cast<CountingImpl>(
          build([] { return std::make_shared<CountingImpl>(); }));
      model->calls.fill_(world.rank());
      DistributedDataParallel ddp(model,
                                  options_over(world, {.buffer_sync = sync}));
      EXPECT_EQ(model->calls.item<int64_t>(), 0);
      ddp(batch(world.rank(), 0)).sum().backward();
      expect_close(model->mean, batch(world.rank(), 0).mean(0), "own", 0);
      model->calls += 10 * world.rank();
      {
        const NoSync no_sync = ddp.no_sync();
        (void)ddp(batch(world.rank(), 1));
      }
      EXPECT_EQ(model->calls.item<int64_t>(), 2 + 10 * world.rank());
      const torch::NoGradGuard no_grad;
      (void)ddp(batch(world.rank(), 1));
      EXPECT_EQ(model->calls.item<int64_t>(),
                sync == BufferSync::none ? 3 + 10 * world.rank() : 3);
    });
  }
}

}  // namespace
}  // namespace tessera::test
