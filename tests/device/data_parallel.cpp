// DistributedDataParallel over real ranks on their devices: what each rank
// would compute alone, averaged by calls of its own, against the wrapper's
// gradients and weights. Prints a line for each case; exits with 1 when any
// differs.
//
//   tessera run -n 2 -- device_data_parallel
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/distributed.h"
#include "tessera/comm/world.h"
#include "tessera/graph/graphed_step.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/module/recompute.h"
#include "tessera/optim/adamw.h"
#include "tessera/optim/zero_redundancy_optimizer.h"
#include "tessera/parallel/distributed_data_parallel.h"

namespace {

using namespace tessera;
namespace nn = torch::nn;
using torch::Tensor;

constexpr int64_t kWidth = 512;
constexpr int kLayers = 12;
constexpr int kSteps = 4;

/// Layers of 1 MiB each, every second one in a region that is computed again.
struct StackImpl : nn::Module {
  nn::ModuleList layers{register_module("layers", nn::ModuleList())};
  nn::BatchNorm1d norm{register_module("norm", nn::BatchNorm1d(kWidth))};
  Tensor spare = register_parameter("spare", torch::ones({kWidth}));
  bool uses_spare = true;

  StackImpl() {
    for (int i = 0; i < kLayers; ++i) {
      layers->push_back(nn::Linear(kWidth, kWidth));
    }
  }
  Tensor forward(const Tensor& input) {
    Tensor x = norm(input);
    for (int i = 0; i < kLayers; ++i) {
      const auto layer = [this, i](const Tensor& in) {
        return in + torch::tanh(layers[i]->as<nn::Linear>()->forward(in));
      };
      x = i % 2 == 0 ? layer(x) : recompute(layer, x);
    }
    return uses_spare ? x * spare : x;
  }
};

std::shared_ptr<StackImpl> make_stack(c10::Device device) {
  torch::manual_seed(3);
  auto stack = std::make_shared<StackImpl>();
  stack->to(device);
  return stack;
}

Tensor batch(const World& world, int step) {
  auto generator =
      at::detail::createCPUGenerator(100 * world.rank() + step + 1);
  return torch::randn({64, kWidth}, generator).to(world.device());
}

struct Case {
  std::string name;
  DataParallelOptions options = {};
  bool uses_spare = true;
  bool accumulates = false;
  std::function<CommHook(const distributed::ProcessGroup&)> hook = {};
  double tolerance = 1e-5;  // relative to the largest: the order of float sums
};

std::vector<Case> cases() {
  return {
      {.name = "buckets of 25 MiB"},
      {.name = "buckets of 1 MiB", .options = {.bucket_cap_mib = 1}},
      {.name = "gradients in buckets",
       .options = {.bucket_cap_mib = 3,
                   .gradient_memory = GradientMemory::bucket}},
      {.name = "a parameter that nobody uses",
       .options = {.bucket_cap_mib = 3,
                   .unused_parameters = UnusedParameters::find},
       .uses_spare = false},
      {.name = "a static graph",
       .options = {.bucket_cap_mib = 3, .static_graph = StaticGraph::yes},
       .uses_spare = false},
      {.name = "accumulation",
       .options = {.bucket_cap_mib = 3},
       .accumulates = true},
      {.name = "accumulation in buckets",
       .options = {.bucket_cap_mib = 3,
                   .gradient_memory = GradientMemory::bucket},
       .accumulates = true},
      {.name = "fp16 on the way",
       .options = {.bucket_cap_mib = 3},
       .hook = comm_hooks::fp16_compress,
       .tolerance = 2e-3},
      {.name = "bf16 on the way",
       .options = {.bucket_cap_mib = 3},
       .hook = comm_hooks::bf16_compress,
       .tolerance = 2e-2},
  };
}

double worst(const Tensor& got, const Tensor& want) {
  const double scale = want.abs().max().item<double>() + 1e-12;
  return (got - want).abs().max().item<double>() / scale;
}

/// The largest difference over all steps; infinite where one has a gradient
/// that the other has not.
double difference(const Case& wanted, const World& world,
                  const distributed::ProcessGroup& group) {
  const auto alone = make_stack(world.device());
  const auto together = make_stack(world.device());
  alone->uses_spare = together->uses_spare = wanted.uses_spare;
  DataParallelOptions options = wanted.options;
  options.mesh = init_device_mesh(world);
  DistributedDataParallel ddp(together, options);
  if (wanted.hook) ddp.set_comm_hook(wanted.hook(ddp.process_group()));
  torch::optim::SGD own(alone->parameters(), 0.05);
  torch::optim::SGD theirs(together->parameters(), 0.05);
  double most = 0;
  for (int step = 0; step < kSteps; ++step) {
    own.zero_grad();
    theirs.zero_grad();
    if (wanted.accumulates) {
      const NoSync no_sync = ddp.no_sync();
      alone->forward(batch(world, 50 + step)).square().mean().backward();
      ddp(batch(world, 50 + step)).square().mean().backward();
    }
    alone->forward(batch(world, step)).square().mean().backward();
    ddp(batch(world, step)).square().mean().backward();
    const auto parameters = alone->parameters();
    const auto got = together->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      Tensor want = parameters[i].grad();
      if (want.defined() != got[i].grad().defined()) return INFINITY;
      if (!want.defined()) continue;
      distributed::all_reduce(want, group).wait();
      want /= world.size();
      most = std::max(most, worst(got[i].grad(), want));
    }
    own.step();
    theirs.step();
  }
  return most;
}

int batches_of(int rank) { return 1 + 2 * rank; }

/// Ranks with 1, 3, 5... batches, by calls of their own: ranks without one
/// count as zeros, and means are over the others.
std::vector<Tensor> joined_by_hand(const World& world,
                                   const distributed::ProcessGroup& group) {
  const auto stack = make_stack(world.device());
  torch::optim::SGD optimizer(stack->parameters(), 0.05);
  for (int step = 0; step < batches_of(world.size() - 1); ++step) {
    optimizer.zero_grad();
    if (step < batches_of(world.rank())) {
      stack->forward(batch(world, step)).square().mean().backward();
    }
    int active = 0;
    for (int rank = 0; rank < world.size(); ++rank) {
      active += step < batches_of(rank) ? 1 : 0;
    }
    for (Tensor& parameter : stack->parameters()) {
      Tensor& gradient = parameter.mutable_grad();
      if (!gradient.defined()) gradient = torch::zeros_like(parameter);
      distributed::all_reduce(gradient, group).wait();
      gradient /= active;
    }
    optimizer.step();
  }
  return stack->parameters();
}

/// The largest difference of the weights.
double join_difference(const World& world,
                       const distributed::ProcessGroup& group) {
  const auto want = joined_by_hand(world, group);
  const auto stack = make_stack(world.device());
  DistributedDataParallel ddp(
      stack, {.mesh = init_device_mesh(world), .bucket_cap_mib = 3});
  ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(
      stack->parameters(), torch::optim::SGDOptions(0.05),
      {.group = ddp.process_group()});
  join({&ddp, &optimizer},
       [&] {
         for (int step = 0; step < batches_of(world.rank()); ++step) {
           optimizer.zero_grad();
           ddp(batch(world, step)).square().mean().backward();
           optimizer.step();
         }
       },
       {.divisor = JoinDivisor::active_ranks});
  double most = 0;
  const auto got = stack->parameters();
  for (size_t i = 0; i < got.size(); ++i) {
    most = std::max(most, worst(got[i].detach(), want[i].detach()));
  }
  return most;
}

/// The weights that the optimizer alone gives, bit for bit, where it is
/// divided.
bool check_divided(const World& world, BucketView view) {
  const auto alone = make_stack(world.device());
  const auto together = make_stack(world.device());
  const DeviceMesh mesh = init_device_mesh(world);
  const auto options = torch::optim::AdamWOptions(1e-3).weight_decay(0.1);
  DistributedDataParallel first(alone, {.mesh = mesh});
  DistributedDataParallel second(together, {.mesh = mesh});
  torch::optim::AdamW plain(alone->parameters(), options);
  ZeroRedundancyOptimizer<torch::optim::AdamW> divided(
      together->parameters(), options,
      {.mesh = mesh, .parameters_as_bucket_view = view});
  bool same = true;
  for (int step = 0; step < kSteps; ++step) {
    plain.zero_grad();
    divided.zero_grad();
    first(batch(world, step)).square().mean().backward();
    const auto from = alone->parameters();
    const auto to = together->parameters();
    for (size_t i = 0; i < from.size(); ++i) {
      to[i].mutable_grad() = from[i].grad().clone();
    }
    plain.step();
    divided.step();
    for (size_t i = 0; i < from.size(); ++i) {
      same = torch::equal(from[i], to[i]) && same;
    }
  }
  const size_t states = divided.local_optimizer().state().size();
  return same && (world.size() == 1 || states < alone->parameters().size());
}

/// A graph of it is an error that says so.
bool check_graph_is_refused(const World& world) {
  const auto stack = make_stack(world.device());
  const DeviceMesh mesh = init_device_mesh(world);
  DistributedDataParallel ddp(stack, {.mesh = mesh});
  AdamW optimizer(stack->parameters(), torch::optim::AdamWOptions(1e-3));
  GraphedStep step(*stack, optimizer, mesh, [&](const TensorVector& in) {
    const Tensor loss = ddp(in[0]).square().mean();
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    return TensorVector{loss.detach()};
  });
  try {
    for (int i = 0; i < 5; ++i) (void)step({batch(world, i)});
  } catch (const Unsupported& error) {
    return std::string(error.what()).find("cannot be part of a CUDA graph") !=
           std::string::npos;
  }
  return false;
}

}  // namespace

int main() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const World world = init_distributed();
  const auto group = distributed::new_group(world);
  int failures = 0;
  const auto say = [&](const std::string& name, bool good, double most) {
    failures += good ? 0 : 1;
    std::printf("%s rank %d %s: %.1e\n", good ? "ok" : "FAILED", world.rank(),
                name.c_str(), most);
  };
  for (const Case& wanted : cases()) {
    const double most = difference(wanted, world, group);
    say(wanted.name, most <= wanted.tolerance, most);
  }
  const double joined = join_difference(world, group);
  say("join", joined <= 1e-5, joined);
  say("an optimizer divided", check_divided(world, BucketView::off), 0);
  say("an optimizer divided, in buckets", check_divided(world, BucketView::on),
      0);
  if (world.device().is_cuda()) {
    say("a graph is refused", check_graph_is_refused(world), 0);
  }
  std::printf("rank %d: %d failures\n", world.rank(), failures);
  world.finish();
  return failures == 0 ? 0 : 1;
}
