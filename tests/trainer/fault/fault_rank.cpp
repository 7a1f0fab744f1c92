// One rank of a job in which rank 1 fails: fault_rank KIND PHASE
//
//   KIND   throw, memory (asks for more than there is), die (exit code 3),
//          stop (SIGSTOP)
//   PHASE  weights, forward, backward, optimizer, evaluation, save
//
// Rank 1 prints "failing" just before. All run two steps first, but for
// weights.
#include <signal.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>

#include "cli/train_program.h"
#include "tessera/base/error.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/module/on_meta.h"
#include "tessera/train/build_optimizer.h"
#include "tessera/train/llama.h"
#include "tessera/train/run_folder.h"
#include "tests/trainer/small_model.h"

namespace tessera::train {
namespace {

struct Fault {
  std::string kind, phase;

  void happen() const {
    std::puts("failing");
    std::fflush(stdout);
    if (kind == "die") ::_exit(3);
    if (kind == "stop") ::raise(SIGSTOP);
    if (kind == "memory") (void)torch::empty({int64_t{1} << 52}, torch::kChar);
    if (kind == "throw") throw std::runtime_error("made to fail in " + phase);
  }
};

/// A Llama that fails when told to.
class FaultyLlama : public LlamaImpl {
 public:
  using LlamaImpl::LlamaImpl;

  at::Tensor forward(const at::Tensor& tokens) override {
    if (fault == nullptr) return LlamaImpl::forward(tokens);
    if (fault->phase == "forward" || fault->phase == "evaluation") {
      fault->happen();
    }
    auto logits = LlamaImpl::forward(tokens);
    if (fault->phase == "backward") {
      logits.register_hook([this](const at::Tensor&) { fault->happen(); });
    }
    return logits;
  }

  const Fault* fault = nullptr;
};

class FaultyOptimizer : public torch::optim::AdamW {
 public:
  using AdamW::AdamW;

  at::Tensor step(LossClosure closure = nullptr) override {
    if (fault != nullptr) fault->happen();
    return AdamW::step(closure);
  }

  const Fault* fault = nullptr;
};

/// What `train` does, in short, with `fault` on this rank.
void run_phases(FaultyLlama& model, const ModelConfig& config,
                const DeviceMesh& mesh, const Fault* fault) {
  FaultyOptimizer optimizer(model.parameters());
  const auto step = [&](int number) {
    const auto batch =
        test::random_batch(config, 2, number + mesh.world().rank());
    train_step(model, optimizer, {batch}, mesh, {});
    return batch;
  };
  step(0);
  const Batch batch = step(1);
  model.fault = fault;
  const bool in_optimizer = fault != nullptr && fault->phase == "optimizer";
  optimizer.fault = in_optimizer ? fault : nullptr;
  if (fault == nullptr || fault->phase != "evaluation") step(2);
  {
    const torch::NoGradGuard no_grad;
    (void)model.forward(batch.input);
  }
  if (fault != nullptr && fault->phase == "save") fault->happen();
  const auto folder =
      std::filesystem::temp_directory_path() / str("fault_rank_", ::getpid());
  std::filesystem::create_directories(folder);
  save_weights(model, mesh, folder);
  std::filesystem::remove_all(folder);
  mesh.world().barrier();
}

int run(const World& world, const Fault& fault) {
  const auto config = test::kSmallModels[0];
  const auto mesh = init_device_mesh(world);
  auto model = on_meta([&] { return std::make_shared<FaultyLlama>(config); });
  shard_model(*model, {}, mesh);
  const bool fails = world.rank() == 1;
  if (fails && fault.phase == "weights") fault.happen();
  draw_weights(*model, {.layers = config.layers});
  run_phases(*model, config, mesh, fails ? &fault : nullptr);
  return 0;
}

}  // namespace
}  // namespace tessera::train

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const tessera::train::Fault fault{argv[1], argv[2]};
  return tessera::cli::run_on_world(
      "fault", [] {},
      [] { return tessera::InitOptions{.timeout = std::chrono::seconds(10)}; },
      [&](const tessera::World& world) {
        return tessera::train::run(world, fault);
      });
}
