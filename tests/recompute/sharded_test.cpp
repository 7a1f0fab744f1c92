// Regions over units of fully_shard: the numbers of one process, and how much
// is gathered at a time.
#include <algorithm>

#include "tessera/module/free_until_backward.h"
#include "tessera/module/recompute.h"
#include "tests/support/agreement.h"

namespace tessera::test {
namespace {

constexpr int64_t kWidth = 6;
constexpr int kBlocks = 4;

struct BlockImpl : nn::Module {
  nn::Linear in{nullptr}, out{nullptr};
  BlockImpl() {
    in = register_module("in", nn::Linear(kWidth, 2 * kWidth));
    out = register_module("out", nn::Linear(2 * kWidth, kWidth));
  }
  Tensor forward(const Tensor& x) { return x + out(torch::tanh(in(x))); }
};
TORCH_MODULE(Block);

/// Looks at the units whenever it is asked to.
struct Watch {
  std::vector<std::shared_ptr<Unit>> blocks;
  size_t most_units = 0;
  int64_t most_bytes = 0;
  int looks = 0;

  void look() {
    size_t units = 0;
    int64_t bytes = 0;
    for (const auto& unit : blocks) {
      if (!unit->gathered()) continue;
      ++units;
      bytes += unit->full_bytes();
    }
    most_units = std::max(most_units, units);
    most_bytes = std::max(most_bytes, bytes);
    ++looks;
  }
};

enum class Regions { none, block, pair, all, nested, but_last };

struct NetImpl : nn::Module {
  nn::ModuleList blocks;
  nn::Linear head{nullptr};
  Regions regions = Regions::none;
  Watch* watch = nullptr;

  NetImpl() {
    blocks = register_module("blocks", nn::ModuleList());
    for (int i = 0; i < kBlocks; ++i) blocks->push_back(Block());
    head = register_module("head", nn::Linear(kWidth, 3));
  }

  /// The block's last layer reads what its region has freed.
  Tensor run_but_last(BlockImpl& block, const Tensor& x) {
    const auto run = recompute_outputs(
        [this, &block](const TensorVector& in) -> TensorVector {
          if (watch) watch->look();
          return {torch::tanh(block.in(in[0]))};
        },
        {x});
    const Tensor y = block.out(run.values[0]);
    free_until_backward(run.values[0], {y},
                        [again = run.again] { return again(0); });
    return x + y;
  }

  Tensor run_block(int64_t i, const Tensor& x) {
    auto& block = blocks->at<BlockImpl>(i);
    Tensor y = regions == Regions::but_last ? run_but_last(block, x)
                                            : block.forward(x);
    if (watch) {
      watch->look();
      if (y.requires_grad()) {
        y.register_hook([this](const Tensor&) { watch->look(); });
      }
    }
    return y;
  }

  Tensor run(int64_t first, int64_t count, Tensor x) {
    for (int64_t i = first; i < first + count; ++i) x = run_block(i, x);
    return x;
  }

  Tensor forward(Tensor x) {
    const int64_t size = regions == Regions::block  ? 1
                         : regions == Regions::pair ? 2
                                                    : kBlocks;
    for (int64_t i = 0; i < kBlocks; i += size) {
      const auto part = [this, i, size](const Tensor& in) {
        if (regions != Regions::nested) return run(i, size, in);
        const auto half = [this](int64_t first) {
          return [this, first](const Tensor& inner) {
            return run(first, kBlocks / 2, inner);
          };
        };
        return recompute(half(kBlocks / 2), recompute(half(0), in));
      };
      const bool whole =
          regions != Regions::none && regions != Regions::but_last;
      x = whole ? recompute(part, x) : part(x);
    }
    return head(x);
  }
};

NetImpl& as_net(nn::Module& module) { return dynamic_cast<NetImpl&>(module); }

Make make_net(Regions regions) {
  return [regions] {
    auto net = std::make_shared<NetImpl>();
    net->regions = regions;
    return net;
  };
}

Tensor input(const Turn& turn) {
  return noise(100 + 10 * turn.rank + turn.step, {5, kWidth});
}

Tensor loss_of(nn::Module& module, const Turn& turn) {
  return as_net(module).forward(input(turn)).pow(2).mean();
}

const std::vector<std::string> kUnits = {"blocks.0", "blocks.1", "blocks.2",
                                         "blocks.3"};
constexpr std::array kAllRegions = {Regions::block, Regions::pair, Regions::all,
                                    Regions::nested, Regions::but_last};

class ShardedRecompute : public DoubleByDefault {};

TEST_F(ShardedRecompute, TrainsAsOneProcess) {
  for (const Regions regions : kAllRegions) {
    expect_agreement(make_net(regions), loss_of,
                     {.units = kUnits, .world_sizes = {1, 2}});
  }
}

TEST_F(ShardedRecompute, ServesTwoForwardsWithOneBackward) {
  const Loss loss = [](nn::Module& module, const Turn& turn) {
    return loss_of(module, turn) +
           loss_of(module, {turn.rank, turn.step + 7, turn.share});
  };
  for (const Regions regions : {Regions::block, Regions::all}) {
    expect_agreement(make_net(regions), loss,
                     {.units = kUnits, .world_sizes = {2}});
  }
}

TEST_F(ShardedRecompute, MixesWithEvaluationBetweenSteps) {
  expect_agreement(make_net(Regions::pair), loss_of,
                   {.units = kUnits,
                    .steps = 3,
                    .before =
                        [](nn::Module& module, int step) {
                          const torch::NoGradGuard no_grad;
                          (void)loss_of(module, {0, step, 1});
                        },
                    .world_sizes = {2}});
}

std::vector<std::shared_ptr<Unit>> block_units(nn::Module& model) {
  std::vector<std::shared_ptr<Unit>> units;
  for (const auto& unit : units_below(model)) {
    if (unit->name().starts_with("blocks.")) units.push_back(unit);
  }
  return units;
}

TEST_F(ShardedRecompute, HoldsTwoUnitsAtMostHoweverLargeTheRegion) {
  for (const int world_size : {1, 2}) {
    on_ranks(world_size, [&](const World& world) {
      for (const Regions regions : kAllRegions) {
        Model model = build_sharded(world, make_net(regions), kUnits);
        Watch watch{.blocks = block_units(*model)};
        as_net(*model).watch = &watch;
        for (int step = 0; step < 2; ++step) {
          loss_of(*model, {world.rank(), step, 1}).backward();
        }
        ASSERT_EQ(watch.blocks.size(), size_t{kBlocks});
        EXPECT_LE(watch.most_units, 2u);
        EXPECT_LE(watch.most_bytes, 2 * watch.blocks[0]->full_bytes());
        // First run, second run and hook of every block, each step at least.
        EXPECT_GE(watch.looks, 2 * 3 * kBlocks);
        expect_nothing_gathered(*model, "after backward");
      }
    });
  }
}

TEST_F(ShardedRecompute, GathersABlockOfItsOwnRegionAsOftenAsWithout) {
  on_ranks(2, [](const World& world) {
    for (const auto& [regions, gathers] :
         {std::pair{Regions::none, 2}, std::pair{Regions::block, 2},
          std::pair{Regions::all, 3}, std::pair{Regions::but_last, 2}}) {
      Model model = build_sharded(world, make_net(regions), kUnits);
      loss_of(*model, {world.rank(), 0, 1}).backward();
      const auto units = block_units(*model);
      for (const auto& unit : units) {
        EXPECT_EQ(unit->counts().reduces, 1) << unit->name();
      }
      EXPECT_EQ(units[0]->counts().gathers, gathers);
    }
  });
}

// Reductions that leave late would keep all gradients whole until the end.
TEST_F(ShardedRecompute, ReducesEachUnitAsItsGradientsCome) {
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_net(Regions::block), kUnits);
    const auto units = block_units(*model);
    const Tensor x = input({world.rank(), 0, 1}).requires_grad_();
    int64_t reduced = -1;
    const Tensor scaled = x * 1;
    scaled.register_hook([&](const Tensor&) {
      reduced = 0;
      for (const auto& unit : units) reduced += unit->counts().reduces;
    });
    as_net(*model).forward(scaled).pow(2).mean().backward();
    EXPECT_EQ(reduced, kBlocks);
  });
}

TEST_F(ShardedRecompute, GivesTheBitsOfMixedPrecisionWithoutIt) {
  on_ranks(2, [](const World& world) {
    std::vector<Tensors> gradients;
    for (const Regions regions :
         {Regions::none, Regions::block, Regions::all}) {
      Model model = build(make_net(regions));
      const FullyShardOptions options{
          .mesh = init_device_mesh(world),
          .mp_policy = {.param_dtype = torch::kBFloat16,
                        .reduce_dtype = torch::kFloat},
          .debug = Debug::poison_memory};
      shard(*model, options, kUnits);
      for (const Sync sync : {Sync::off, Sync::on}) {
        set_requires_gradient_sync(*model, sync);
        const int step = sync == Sync::on ? 1 : 0;
        loss_of(*model, {world.rank(), step, 1}).backward();
      }
      gradients.push_back(full_gradients(world, *model));
    }
    for (size_t i = 1; i < gradients.size(); ++i) {
      for (const auto& [name, gradient] : gradients[0]) {
        EXPECT_TRUE(gradients[i].at(name).equal(gradient)) << name;
      }
    }
  });
}

TEST_F(ShardedRecompute, AfterAnErrorInTheSecondRunTheNextStepIsRight) {
  const Tensors want = [] {
    Model model = build(make_net(Regions::none));
    for (int rank = 0; rank < 2; ++rank) {
      (loss_of(*model, {rank, 1, 0.5}) * 0.5).backward();
    }
    return plain_gradients(*model);
  }();
  on_ranks(2, [&](const World& world) {
    Model model = build_sharded(world, make_net(Regions::none), kUnits);
    auto& net = as_net(*model);
    int runs = 0;
    const Tensor y = recompute(
        [&](const Tensor& in) {
          const Tensor out = net.run(0, 2, in);
          if (++runs == 2) throw InvalidState("second run");
          return net.run(2, 2, out);
        },
        input({world.rank(), 0, 1}));
    EXPECT_THROW(net.head(y).pow(2).mean().backward(), InvalidState);
    expect_nothing_gathered(*model, "after the error");
    net.regions = Regions::pair;
    loss_of(*model, {world.rank(), 1, 1}).backward();
    expect_close(full_gradients(world, *model), want, "gradient", 1e-9);
  });
}

TEST_F(ShardedRecompute, RefusesWeightsThatChangedSinceTheFirstRun) {
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_net(Regions::block), kUnits);
    const Tensor loss = loss_of(*model, {world.rank(), 0, 1});
    for (Tensor& parameter : model->parameters()) {
      const torch::NoGradGuard no_grad;
      parameter.mul_(2);
    }
    EXPECT_TRUE(
        says(message_of([&] { loss.backward(); }), "Run forward again"));
  });
}

}  // namespace
}  // namespace tessera::test
