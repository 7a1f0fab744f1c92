// One rank of a job in which rank 1 fails in its third step: fault_rank WHERE,
// with WHERE one of forward, backward, optimizer (throws there), die, stop.
#include <signal.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>

#include "cli/train_program.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/module/on_meta.h"
#include "tessera/train/build_optimizer.h"
#include "tessera/train/llama.h"
#include "tests/trainer/small_model.h"

namespace tessera::train {
namespace {

void fail(const std::string& where) {
  throw std::runtime_error("made to fail in " + where);
}

/// A Llama that fails when told to.
class FaultyLlama : public LlamaImpl {
 public:
  using LlamaImpl::LlamaImpl;

  at::Tensor forward(const at::Tensor& tokens) override {
    if (fault == "forward") fail(fault);
    if (fault == "die") ::_exit(3);
    if (fault == "stop") ::raise(SIGSTOP);
    auto logits = LlamaImpl::forward(tokens);
    if (fault == "backward") {
      logits.register_hook([](const at::Tensor&) { fail("backward"); });
    }
    return logits;
  }

  std::string fault;
};

class FaultyOptimizer : public torch::optim::AdamW {
 public:
  using AdamW::AdamW;

  at::Tensor step(LossClosure closure = nullptr) override {
    if (faulty) fail("optimizer");
    return AdamW::step(closure);
  }

  bool faulty = false;
};

int run(const World& world, const std::string& where) {
  const auto config = test::kSmallModels[0];
  const auto mesh = init_device_mesh(world);
  auto model = on_meta([&] { return std::make_shared<FaultyLlama>(config); });
  shard_model(*model, {}, mesh);
  draw_weights(*model, {.layers = config.layers});
  FaultyOptimizer optimizer(model->parameters());
  for (int step = 0; step < 1000; ++step) {
    if (step == 2 && world.rank() == 1) {
      model->fault = where;
      optimizer.faulty = where == "optimizer";
    }
    const Batch batch = test::random_batch(config, 2, step + world.rank());
    train_step(*model, optimizer, {batch}, mesh, {});
    if (step == 1 && world.rank() == 0) std::puts("training");
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace tessera::train

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string where = argv[1];
  return tessera::cli::run_on_world(
      "fault", [] {},
      [] { return tessera::InitOptions{.timeout = std::chrono::seconds(5)}; },
      [&](const tessera::World& world) {
        return tessera::train::run(world, where);
      });
}
