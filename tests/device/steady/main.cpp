// Steady steps neither ask the driver for memory nor let the host wait for the
// device. Prints a line for each case; exits with 1 when any does either. On
// one rank or more:
//
//   tessera run -n 2 -- device_steady
//
// Three looks at each: the allocator's counts over steps, LibTorch's own check
// of waits (an error here), and steps behind a device that is kept busy, which
// the host must have issued before the device gets to them. CPU offload is not
// among the cases: its optimizer runs on the host, after the gradients.
#include <c10/util/signal_handler.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/collective_log.h"
#include "tessera/comm/world.h"
#include "tessera/optim/adamw.h"
#include "tessera/optim/clip_grad_norm.h"
#include "tessera/optim/grad_scaler.h"
#include "tessera/shard/find_units.h"
#include "tessera/shard/float8_gather.h"
#include "tessera/shard/fully_shard.h"
#include "tessera/shard/unit.h"
#include "tests/device/steady/post_optim_event.h"
#include "tests/device/steady/watch.h"
#include "tests/trainer/small_model.h"

namespace {

using namespace tessera;
using namespace device_steady;
using torch::Tensor;
using train::Batch;
using train::ModelConfig;
using train::ModelKernels;
using train::RecomputePolicy;

constexpr int kWarmup = 6;
constexpr int kSteps = 6;
constexpr int kBusySteps = 2;

struct Case {
  std::string name;
  int micro_batches = 1;
  double max_norm = 1.0;  // 0: no clipping
  ModelKernels kernels = ModelKernels::fused;
  RecomputePolicy recompute = RecomputePolicy::none;
  torch::Dtype param_dtype = torch::kBFloat16;
  Reshard reshard = Reshard::automatic;
  std::optional<size_t> prefetch = {};
  BackwardOverlap backward_overlap = BackwardOverlap::full;
  bool replicated = false;
  bool step_in_backward = false;
  bool float8_gather = false;
  bool scaled = false;  // by a GradScaler
  bool norm_in_backward = false;
};

std::vector<Case> cases() {
  return {
      {.name = "clipped"},
      {.name = "not clipped", .max_norm = 0},
      {.name = "plain kernels", .kernels = ModelKernels::plain},
      {.name = "float32", .param_dtype = torch::kFloat32},
      {.name = "resharded after forward, nothing ahead",
       .reshard = Reshard::always,
       .prefetch = 0},
      {.name = "resharded after forward, one ahead",
       .reshard = Reshard::always,
       .prefetch = 1},
      {.name = "kept after forward", .reshard = Reshard::never},
      {.name = "accumulation of 3", .micro_batches = 3},
      {.name = "recompute of blocks", .recompute = RecomputePolicy::block},
      {.name = "selective recompute", .recompute = RecomputePolicy::selective},
      {.name = "activations on the host",
       .recompute = RecomputePolicy::offload},
      {.name = "all but attention recomputed, backward overlaps tightly",
       .recompute = RecomputePolicy::but_attention,
       .reshard = Reshard::always,
       .backward_overlap = BackwardOverlap::tight},
      {.name = "2 replicas", .replicated = true},
      {.name = "2 replicas, accumulation of 3",
       .micro_batches = 3,
       .replicated = true},
      {.name = "steps in backward", .max_norm = 0, .step_in_backward = true},
      {.name = "float8 gathers", .float8_gather = true},
      {.name = "float16, scaled and clipped",
       .param_dtype = torch::kHalf,
       .scaled = true},
      {.name = "norms in backward", .norm_in_backward = true},
      {.name = "norms in backward, 2 replicas, accumulation of 3",
       .micro_batches = 3,
       .replicated = true,
       .norm_in_backward = true},
  };
}

class Training {
 public:
  Training(const Case& wanted, const DeviceMesh& mesh)
      : case_(wanted),
        mesh_(mesh),
        model_(make_model()),
        optimizer_(model_->parameters(),
                   torch::optim::AdamWOptions(1e-3).weight_decay(0.1)) {
    if (wanted.step_in_backward) {
      step_in_backward(*model_, [this](const std::vector<Tensor>& shards) {
        optimizer_.step_only(shards);
      });
    }
    if (wanted.norm_in_backward) {
      set_norm_in_backward(*model_, NormInBackward::on);
    }
    for (int i = 0; i < wanted.micro_batches; ++i) {
      const auto batch =
          train::test::random_batch(config(), 4, 100 * mesh.world().rank() + i);
      batches_.push_back(
          {batch.input.to(mesh.device()), batch.target.to(mesh.device())});
    }
  }

  void step() {
    ++steps_;
    for (auto& group : optimizer_.param_groups()) {
      group.options().set_lr(1e-3 / steps_);
    }
    for (size_t i = 0; i < batches_.size(); ++i) {
      set_requires_gradient_sync(
          *model_, i + 1 == batches_.size() ? Sync::on : Sync::off);
      loss_of(batches_[i]).backward();
    }
    update();
    optimizer_.zero_grad();
  }

  CollectiveLog& log() {
    return units_below(*model_).front()->lanes()->control->log();
  }

 private:
  [[nodiscard]] ModelConfig config() const {
    return {.vocab = 1024,
            .dim = 256,
            .layers = 3,
            .heads = 4,
            .kv_heads = 2,
            .ffn = 512,
            .seq = 128,
            .kernels = case_.kernels,
            .recompute = case_.recompute};
  }

  train::LanguageModelPtr make_model() const {
    auto model = train::build_model_meta(config());
    FullyShardOptions how{.mesh = mesh_,
                          .reshard_after_forward = case_.reshard,
                          .mp_policy = {.param_dtype = case_.param_dtype,
                                        .reduce_dtype = torch::kFloat32},
                          .prefetch = case_.prefetch,
                          .backward_overlap = case_.backward_overlap};
    if (case_.float8_gather) how.gather_transform = float8_gather();
    for (auto* unit : model->units()) fully_shard(*unit, how);
    fully_shard(*model, how);
    train::draw_weights(*model,
                        {.seed = 7, .std = 0.05, .layers = config().layers});
    return model;
  }

  Tensor loss_of(const Batch& batch) {
    const auto targets = batch.target.numel() * case_.micro_batches;
    const Tensor loss =
        model_->sum_of_losses(batch.input, batch.target) / targets;
    return case_.scaled ? scaler_.scale(loss) : loss;
  }

  void update() {
    if (case_.scaled) scaler_.unscale_(optimizer_);
    if (case_.max_norm > 0) {
      clip_grad_norm_(model_->parameters(), case_.max_norm);
    }
    if (case_.scaled) {
      scaler_.step(optimizer_);
      scaler_.update();
    } else {
      optimizer_.step();
    }
  }

  const Case case_;
  const DeviceMesh mesh_;
  train::LanguageModelPtr model_;
  AdamW optimizer_;
  GradScaler scaler_;
  std::vector<Batch> batches_;
  int steps_ = 0;
};

struct Finding {
  std::string trouble;  // "" when all is well
  double host_ms = 0;   // to issue a step while the device was busy
};

/// Steps behind a busy device. Empty when the host was through before it.
std::string behind_busy_device(Training& training, c10::Device device,
                               double& host_ms) {
  for (int i = 0; i < kBusySteps; ++i) {
    const BusyDevice busy(device);
    const auto start = std::chrono::steady_clock::now();
    training.step();
    const bool was_ahead = busy.still_busy();
    const std::chrono::duration<double, std::milli> took =
        std::chrono::steady_clock::now() - start;
    host_ms = took.count();
    wait_for_device();
    if (!was_ahead) {
      return str("the host waited for the device: a step took it ", host_ms,
                 " ms behind a busy device");
    }
  }
  return "";
}

Finding look_at(const Case& wanted, const DeviceMesh& mesh) {
  Training training(wanted, mesh);
  for (int i = 0; i < kWarmup; ++i) training.step();
  wait_for_device();
  const DriverCalls before = driver_calls(mesh.device());
  Finding found;
  try {
    const WaitsAreErrors scope;
    for (int i = 0; i < kSteps; ++i) training.step();
  } catch (const std::exception& error) {
    // The step was broken off, and so is this case.
    return {.trouble = str("LibTorch waited: ", error.what())};
  }
  wait_for_device();
  const DriverCalls steady = driver_calls(mesh.device());
  found.trouble = behind_busy_device(training, mesh.device(), found.host_ms);
  const DriverCalls after = driver_calls(mesh.device());
  if (steady != before) {
    found.trouble = str(describe(before, steady), " in ", kSteps, " steps; ",
                        found.trouble);
  } else if (after != steady) {
    found.trouble =
        str(describe(steady, after), " behind a busy device; ", found.trouble);
  }
  return found;
}

bool check(const Case& wanted, const DeviceMesh& mesh) {
  const World& world = mesh.world();
  Finding found;
  try {
    found = look_at(wanted, mesh);
  } catch (const std::exception& error) {
    found.trouble = error.what();
  }
  if (!found.trouble.empty()) {
    std::printf("FAILED %s, rank %d: %s\n", wanted.name.c_str(), world.rank(),
                found.trouble.c_str());
  } else if (world.rank() == 0) {
    std::printf("ok %s: a step issued in %.1f ms\n", wanted.name.c_str(),
                found.host_ms);
  }
  world.barrier();
  return found.trouble.empty();
}

/// Rank 0 notes a collective that the others do not. A step's comparison is
/// looked at later, by the next step at the latest here; the world fails.
bool finds_unlike(const DeviceMesh& mesh) {
  Training training({.name = "unlike"}, mesh);
  training.step();
  mesh.world().barrier();
  CollectiveLog& log = training.log();
  if (mesh.world().rank() == 0) {
    log.finish(log.enter("extra", "note", {}, 1, torch::kLong));
  }
  try {
    training.step();
    wait_for_device();
    training.step();
  } catch (const std::exception& error) {
    return true;
  }
  std::printf("FAILED rank %d: unlike collectives were not noticed\n",
              mesh.world().rank());
  return false;
}

}  // namespace

int main() {
  std::setvbuf(stdout, nullptr, _IOLBF,
               0);  // what was printed survives a crash
  c10::FatalSignalHandler::getInstance().setPrintStackTracesOnFatalSignal(true);
  const World world = init_distributed({.timeout = std::chrono::minutes(1)});
  if (!world.device().is_cuda()) {
    std::fprintf(stderr, "device_steady: needs a CUDA device for each rank\n");
    return 2;
  }
  const DeviceMesh mesh = init_device_mesh(world);
  DeviceMesh replicas;  // undefined where the ranks are not even in number
  if (world.size() % 2 == 0) {
    replicas = init_device_mesh(world, {.shape = {2, world.size() / 2},
                                        .axes = {"replicate", "shard"}});
  }
  int failures = notices_all(world.device()) ? 0 : 1;
  for (const Case& wanted : cases()) {
    const DeviceMesh& ranks = wanted.replicated ? replicas : mesh;
    if (ranks.defined()) {
      failures += check(wanted, ranks) ? 0 : 1;
    } else if (world.rank() == 0) {
      std::printf("left out: %s, on %d ranks\n", wanted.name.c_str(),
                  world.size());
    }
  }
  failures += check_post_optim_event(mesh);
  if (world.size() > 1) failures += finds_unlike(mesh) ? 0 : 1;
  std::printf("rank %d: %d failures\n", world.rank(), failures);
  return failures == 0 ? 0 : 1;
}
