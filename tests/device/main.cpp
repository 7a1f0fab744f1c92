// Trains every model of the agreement suite sharded over the ranks of this job,
// on their devices, and compares with the same training on this rank's device
// alone. Prints a line per job; exits with 1 when any differs.
#include <cmath>
#include <cstdio>

#include "tessera/shard/float8_gather.h"
#include "tests/agreement/llama.h"
#include "tests/agreement/train.h"

namespace {

using namespace agreement;

double worst_loss_difference(const Outcome& got, const Outcome& expected) {
  double worst = 0;
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    const double difference = std::abs(got.losses[i] - expected.losses[i]);
    worst = std::max(worst, difference / expected.losses[i]);
  }
  return worst;
}

double worst_weight_difference(const Outcome& got, const Outcome& expected) {
  double worst = 0;
  for (const auto& [name, weight] : expected.weights) {
    const Tensor difference = (got.weights.at(name) - weight).abs();
    // NaN must not hide behind a comparison.
    worst = difference.isnan().any().item<bool>()
                ? INFINITY
                : std::max(worst, difference.max().item<double>());
  }
  return worst;
}

/// Sharded training, and the one on one device that it must agree with.
struct Comparison {
  Job sharded;
  Job alone;
};

/// Alone as sharded, but in float32.
Comparison with_itself(const Job& job) {
  Comparison both{.sharded = job, .alone = job};
  both.alone.param_dtype = {};
  return both;
}

std::vector<Job> jobs_of(const Job& job) {
  std::vector<Job> all = {job};
  for (const auto reshard :
       {tessera::Reshard::always, tessera::Reshard::never}) {
    all.push_back(job);
    all.back().reshard = reshard;
    all.back().accumulate = 3;
  }
  all.push_back(job);
  all.back().build = Build::meta;
  all.push_back(job);
  all.back().spread = Spread::replicate;
  all.push_back(job);
  all.back().clip = 0.1;
  for (const auto optimizer : {Optimizer::adamw, Optimizer::fused_adamw}) {
    all.push_back(job);
    all.back().optimizer = optimizer;
  }
  all.push_back(job);
  all.back().param_dtype = torch::kBFloat16;
  for (const auto optimizer : {Optimizer::sgd, Optimizer::fused_adamw}) {
    all.push_back(job);
    all.back().optimizer = optimizer;
    all.back().param_dtype = torch::kHalf;
    all.back().overflow_at = 1;
    all.back().clip = 0.1;
  }
  all.push_back(job);
  all.back().gather_transform = tessera::float8_gather();
  all.push_back(job);
  all.back().shard_dim = 1;
  for (const bool pinned : {true, false}) {
    all.push_back(job);
    all.back().offload = tessera::CPUOffloadPolicy{.pin_memory = pinned};
    all.back().optimizer = Optimizer::fused_adamw;
    all.back().accumulate = pinned ? 1 : 3;
    all.back().clip = 0.1;
  }
  return all;
}

/// With fused kernels, and with a recompute: against the plain model, too.
std::vector<Comparison> llamas(c10::Device device) {
  const auto llama = [&](ModelKernels kernels, RecomputePolicy recompute) {
    return Job{.model = small_llama(kernels, recompute), .device = device};
  };
  const Job plain = llama(ModelKernels::plain, RecomputePolicy::none);
  std::vector<Comparison> all;
  for (const auto kernels : {ModelKernels::plain, ModelKernels::fused}) {
    for (const Job& job : jobs_of(llama(kernels, RecomputePolicy::none))) {
      all.push_back(with_itself(job));
    }
    for (const auto recompute :
         {RecomputePolicy::none, RecomputePolicy::selective,
          RecomputePolicy::offload, RecomputePolicy::but_attention,
          RecomputePolicy::block}) {
      all.push_back({.sharded = llama(kernels, recompute), .alone = plain});
      all.back().sharded.reshard = tessera::Reshard::always;
    }
  }
  return all;
}

std::vector<Comparison> comparisons(c10::Device device) {
  std::vector<Comparison> all = llamas(device);
  for (const NamedModel& model : all_models()) {
    for (const Job& job : jobs_of({.model = model, .device = device})) {
      all.push_back(with_itself(job));
    }
  }
  return all;
}

// Tolerances as in agreement_test.cpp; atomic adds on CUDA reorder the sums of
// embedding gradients on top.
bool agrees(const Job& job, double loss, double weight) {
  // A weight that was gathered is off by up to 1/16 of it.
  if (job.gather_transform) return loss < 0.05 && weight < 0.05;
  if (job.param_dtype) return loss < 0.02 && weight < 0.05;
  if (job.optimizer != Optimizer::sgd) return loss < 2e-5 && weight < 1e-3;
  return loss < 5e-6 && weight < 5e-6;
}

// Trains both and prints how they differ, on rank 0.
bool differs(const Comparison& both, const tessera::DeviceMesh& mesh) {
  const Job& job = both.sharded;
  const Outcome expected = train_plain(both.alone);
  const Outcome got = train_sharded(job, mesh);
  if (mesh.world().rank() != 0) return false;
  const double loss = worst_loss_difference(got, expected);
  const double weight = worst_weight_difference(got, expected);
  const bool good = agrees(job, loss, weight);
  std::printf("%s %s%s%s, %s: losses %.1e, weights %.1e\n",
              good ? "ok" : "FAILED", job.describe().c_str(),
              job.model.name == both.alone.model.name ? "" : ", against ",
              job.model.name == both.alone.model.name
                  ? ""
                  : both.alone.model.name.c_str(),
              mesh.describe().c_str(), loss, weight);
  return !good;
}

}  // namespace

int main() {
  std::setvbuf(stdout, nullptr, _IOLBF,
               0);  // what was printed survives a crash
  const tessera::World world = tessera::init_distributed();
  const tessera::DeviceMesh mesh = tessera::init_device_mesh(world);
  std::vector<tessera::DeviceMesh> meshes = {mesh};
  if (world.size() % 2 == 0) {
    meshes.push_back(tessera::init_device_mesh(
        world,
        {.shape = {2, world.size() / 2}, .axes = {"replicate", "shard"}}));
  }
  int failures = 0;
  for (const Comparison& both : comparisons(world.device())) {
    for (const auto& ranks : meshes) {
      failures += differs(both, ranks) ? 1 : 0;
    }
  }
  if (world.rank() == 0) {
    std::printf("%d of the jobs differ, %d ranks on %s\n", failures,
                world.size(), world.device().str().c_str());
  }
  world.barrier();
  return failures == 0 ? 0 : 1;
}
