// Public reports about offloading, mixed precision, recompute and state dicts.
#include "tessera/module/recompute.h"
#include "tessera/optim/clip_grad_norm.h"
#include "tessera/shard/unit_settings.h"
#include "tessera/state/get_state_dict.h"
#include "tests/reports/reports.h"

namespace reports {
namespace {

using tessera::CPUOffloadPolicy;
using tessera::MixedPrecisionPolicy;
using tessera::recompute;

struct LayersImpl : nn::Module {
  nn::Linear a{nullptr}, b{nullptr}, c{nullptr};
  explicit LayersImpl(int64_t ends = 4, int64_t middle = 6) {
    a = register_module("a", nn::Linear(ends, middle));
    b = register_module("b", nn::Linear(middle, middle));
    c = register_module("c", nn::Linear(middle, ends));
    set_numbers(*this);
  }
  Tensor forward(const Tensor& x) {
    return c(torch::relu(b(torch::relu(a(x)))));
  }
};
TORCH_MODULE(Layers);

void shard(Layers& model, const FullyShardOptions& how) {
  for (nn::Module* unit : {model->a.get(), model->b.get()}) {
    tessera::fully_shard(*unit, how);
  }
  tessera::fully_shard(*model, how);
}

/// This rank's rows of a global batch of 12, whose values depend on `batch`.
Tensor rows(const World& world, int batch = 0, int64_t width = 4) {
  const int64_t each = 12 / world.size();
  return numbers({12, width}, 1.0 + batch).narrow(0, world.rank() * each, each);
}

Tensor loss_of(Layers& model, const Tensor& x) {
  return model->forward(x).to(torch::kFloat).pow(2).mean();
}

std::vector<Tensor> gradients_of(Layers& model) {
  std::vector<Tensor> gradients;
  for (const Tensor& p : model->parameters()) gradients.push_back(p.grad());
  return gradients;
}

/// What a step of SGD with rate 1 leaves, from gradients of a plain model.
std::vector<Tensor> stepped(Layers& plain) {
  torch::NoGradGuard no_grad;
  std::vector<Tensor> values;
  for (const Tensor& p : plain->parameters()) values.push_back(p - p.grad());
  return values;
}

FullyShardOptions with_offload(const World& world, bool pin_memory) {
  FullyShardOptions how = options(world);
  how.offload_policy = CPUOffloadPolicy{.pin_memory = pin_memory};
  return how;
}

TEST(Report, ClipOfOffloadedGradientsIsThatOfOneProcess) {  // A16
  Layers plain;
  loss_of(plain, numbers({12, 4}, 1.0)).backward();
  const double want = nn::utils::clip_grad_norm_(plain->parameters(), 0.01);
  for (const bool pin_memory : {true, false}) {
    run_ranks(
        2,
        [&](const World& world) {
          Layers model;
          shard(model, with_offload(world, pin_memory));
          loss_of(model, rows(world)).backward();
          for (const Tensor& gradient : gradients_of(model)) {
            EXPECT_TRUE(gradient.is_cpu());
          }
          const Tensor norm =
              tessera::clip_grad_norm_(model->parameters(), 0.01);
          EXPECT_NEAR(norm.item<double>(), want, 1e-5 * want);
          torch::optim::SGD(model->parameters(), 1.0).step();
          expect_near(whole(*model), stepped(plain));
        },
        kDeadline);
  }
}

TEST(Report, OffloadedMicroBatchesAddUpWithAndWithoutSync) {  // A21
  constexpr int kBatches = 3;
  Layers plain;
  for (int batch = 0; batch < kBatches; ++batch) {
    loss_of(plain, numbers({12, 4}, 1.0 + batch)).backward();
  }
  for (const bool offload : {false, true}) {
    for (const bool sync : {false, true}) {
      run_ranks(
          2,
          [&](const World& world) {
            Layers model;
            shard(model, offload ? with_offload(world, false) : options(world));
            for (int batch = 0; batch < kBatches; ++batch) {
              const bool on = sync || batch + 1 == kBatches;
              tessera::set_requires_gradient_sync(
                  *model, on ? tessera::Sync::on : tessera::Sync::off);
              loss_of(model, rows(world, batch)).backward();
            }
            torch::optim::SGD(model->parameters(), 1.0).step();
            expect_near(whole(*model), stepped(plain));
          },
          kDeadline);
    }
  }
}

TEST(Report, AllRanksAreSummedInTheReduceDtype) {  // A32
  const std::vector<std::vector<int64_t>> shapes = {{2}, {1, 2}, {2, 1}};
  for (const auto& shape : shapes) {
    run_ranks(
        2,
        [&](const World& world) {
          One model(std::vector<int64_t>{2});
          FullyShardOptions how;
          std::vector<std::string> axes = {"replicate", "shard"};
      if (shape.size() == 1) axes = {"shard"};
      how.mesh = tessera::init_device_mesh(world, {shape, axes});
          how.mp_policy = {.param_dtype = torch::kBFloat16,
                           .reduce_dtype = torch::kFloat};
          tessera::fully_shard(*model, how);
          // Their sum has one bit more than bfloat16 holds.
          const double mine = world.rank() == 0 ? 1.0 : 0.0009765625;
          const Tensor x = torch::full({2}, mine, torch::kBFloat16);
          model->forward(x).backward();
          torch::optim::SGD(model->parameters(), 2.0).step();
          const Tensor want = numbers({2}) - 1.0009765625;
          EXPECT_TRUE(whole(*model)[0].equal(want)) << whole(*model)[0];
        },
        kDeadline);
  }
}

// One of the four ways to come to a model that computes in bfloat16.
struct Arm {
  bool stored_low = false;
  bool cast_up = false;
  bool policy = true;
};

struct Ended {
  std::vector<Tensor> weights;
  c10::ScalarType stored{};
  std::string said;
};

Ended train(const Arm& arm) {
  Ended ended;
  testing::internal::CaptureStderr();
  run_ranks(
      2,
      [&](const World& world) {
        Layers model(16, 128);
        {
          torch::NoGradGuard no_grad;  // storing them in bfloat16 loses nothing
          for (Tensor& p : model->parameters()) p.copy_(p.to(torch::kBFloat16));
        }
        if (arm.stored_low) model->to(torch::kBFloat16);
        if (arm.cast_up) model->to(torch::kFloat);
        FullyShardOptions how = options(world);
        if (arm.policy) how.mp_policy.param_dtype = torch::kBFloat16;
        shard(model, how);
        torch::optim::SGD sgd(model->parameters(), 1e-4);
        for (int step = 0; step < 3; ++step) {
          sgd.zero_grad();
          const Tensor x = rows(world, step, 16);
          loss_of(model, x.to(torch::kBFloat16)).backward();
          sgd.step();
        }
        const auto weights = whole(*model);
        if (world.rank() != 0) return;
        ended.weights = weights;
        ended.stored = model->parameters()[0].scalar_type();
      },
      kDeadline);
  ended.said = testing::internal::GetCapturedStderr();
  return ended;
}

bool same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (!a[i].to(torch::kFloat).equal(b[i].to(torch::kFloat))) return false;
  }
  return true;
}

TEST(Report, MastersInLowPrecisionAreNamedAndThoseCastUpTrainInFloat) {  // A33
  const Ended masters = train({});
  const Ended low = train({.stored_low = true});
  const Ended up = train({.stored_low = true, .cast_up = true});
  const Ended raw = train({.stored_low = true, .policy = false});
  EXPECT_EQ(masters.stored, torch::kFloat);
  EXPECT_EQ(low.stored, torch::kBFloat16);
  EXPECT_EQ(up.stored, torch::kFloat);
  EXPECT_EQ(raw.stored, torch::kBFloat16);
  // Steps of 1e-4 are below what bfloat16 can tell: only masters in float move.
  EXPECT_TRUE(same(up.weights, masters.weights));
  EXPECT_FALSE(same(up.weights, low.weights));
  EXPECT_TRUE(same(raw.weights, low.weights));
  EXPECT_TRUE(says(low.said, "'weight' is stored in BFloat16")) << low.said;
  EXPECT_TRUE(says(low.said, "to(torch::kFloat)")) << low.said;
  EXPECT_FALSE(says(up.said, "is stored in")) << up.said;
  EXPECT_FALSE(says(raw.said, "is stored in")) << raw.said;
}

// A recomputed region inside a unit, a unit inside one, and both.
enum class Wrapped { inside, outside, twice };

struct WrappedImpl : nn::Module {
  Layers layers{4, 6};
  Wrapped wrapped;
  explicit WrappedImpl(Wrapped wrapped) : wrapped(wrapped) {
    register_module("layers", layers);
  }
  Tensor inner(const Tensor& x) {
    const auto part = [this](const Tensor& in) {
      return layers->b(torch::relu(layers->a(in)));
    };
    return layers->c(wrapped == Wrapped::outside ? part(x)
                                                 : recompute(part, x));
  }
  Tensor forward(const Tensor& x) {
    const auto whole = [this](const Tensor& in) { return inner(in); };
    return wrapped == Wrapped::inside ? whole(x) : recompute(whole, x);
  }
};

TEST(Report, RecomputeInsideAUnitAroundItAndBothGiveTheSameShapes) {  // A36
  Layers plain(4, 6);
  const Tensor x = numbers({12, 4}, 1.0);
  plain->c(plain->b(torch::relu(plain->a(x)))).pow(2).mean().backward();
  for (const auto wrapped :
       {Wrapped::inside, Wrapped::outside, Wrapped::twice}) {
    for (const bool one_unit : {true, false}) {
      run_ranks(
          2,
          [&](const World& world) {
            WrappedImpl model(wrapped);
            if (one_unit) {
              tessera::fully_shard(*model.layers, options(world));
            } else {
              shard(model.layers, options(world));
            }
            const Tensor in = rows(world).clone().requires_grad_();
            model.forward(in).pow(2).mean().backward();
            torch::optim::SGD(model.layers->parameters(), 1.0).step();
            expect_near(whole(*model.layers), stepped(plain));
          },
          kDeadline);
    }
  }
}

// An optimizer that steps as soon as a gradient has come.
class StepAtOnce final : public torch::autograd::PostAccumulateGradHook {
 public:
  void operator()(const torch::autograd::Variable& shard) override {
    torch::NoGradGuard no_grad;
    shard.sub_(0.1 * shard.grad());
    shard.mutable_grad().reset();
  }
};

std::vector<Tensor> train_offloaded(std::optional<CPUOffloadPolicy> offload,
                                    bool step_at_once) {
  std::vector<Tensor> weights;
  run_ranks(
      4,
      [&](const World& world) {
        Layers model;
        FullyShardOptions how = options(world);
        how.mesh = tessera::init_device_mesh(
            world, {.shape = {2, 2}, .axes = {"replicate", "shard"}});
        how.offload_policy = offload;
        shard(model, how);
        torch::optim::SGD sgd(model->parameters(), 0.1);
        for (const Tensor& p : model->parameters()) {
          if (!step_at_once) break;
          torch::autograd::impl::set_post_acc_grad_hooks(
              p, std::make_unique<StepAtOnce>());
        }
        for (int step = 0; step < 20; ++step) {
          loss_of(model, rows(world, step % 3)).backward();
          if (step_at_once) continue;
          sgd.step();
          sgd.zero_grad();
        }
        const auto all = whole(*model);
        if (world.rank() == 0) weights = all;
      },
      kDeadline);
  return weights;
}

TEST(Report, OffloadedReplicasTrainToTheBitsOfThoseThatAreNot) {  // A37
  for (const bool step_at_once : {false, true}) {
    const auto want = train_offloaded({}, step_at_once);
    for (const bool pin_memory : {true, false}) {
      const auto got = train_offloaded(
          CPUOffloadPolicy{.pin_memory = pin_memory}, step_at_once);
      EXPECT_TRUE(same(got, want)) << "step at once: " << step_at_once;
    }
  }
}

TEST(Report, AStateDictTakenByOneRankAloneEndsAndSaysWhoMustTakeIt) {  // A56d
  const auto message = message_of<tessera::CommError>([] {
    run_ranks(
        2,
        [](const World& world) {
          Layers model;
          shard(model, options(world));
          if (world.rank() == 0) {
            (void)tessera::get_model_state_dict(*model,
                                                {.full_state_dict = true});
          } else {
            loss_of(model, rows(world)).backward();  // goes on training
          }
        },
        3s);
  });
  EXPECT_TRUE(says(message, "call it on all ranks")) << message;
}

}  // namespace
}  // namespace reports
