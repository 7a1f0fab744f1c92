#include "tests/faults/faulty_rank.h"

#include <signal.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <thread>
#include <vector>

#include "cli/train_program.h"
#include "tessera/base/error.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/shard/fully_shard.h"

namespace tessera::test {
namespace {

using namespace std::chrono_literals;
using torch::Tensor;

constexpr int kWidth = 8;
constexpr int kBatches = 5;
constexpr int kFaultyBatch = 2;
constexpr int64_t kBlockBytes = 32 << 20;

/// Three units of one size, so that nothing but their names tells them apart.
struct ChainImpl : torch::nn::Module {
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr};
  torch::nn::Linear fourth{nullptr};

  explicit ChainImpl(const std::string& kind) {
    const int width = kind == "width" ? kWidth + 1 : kWidth;
    first = register_module("first", torch::nn::Linear(kWidth, kWidth));
    second = register_module("second", torch::nn::Linear(kWidth, kWidth));
    third = register_module(kind == "name" ? "other" : "third",
                            torch::nn::Linear(kWidth, width));
    if (kind == "depth") {
      fourth = register_module("fourth", torch::nn::Linear(kWidth, kWidth));
    }
  }
};

struct ThrowsInBackward : torch::autograd::Function<ThrowsInBackward> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) {
    return x.clone();
  }
  static torch::autograd::tensor_list backward(
      torch::autograd::AutogradContext*, torch::autograd::tensor_list) {
    throw std::runtime_error("made to fail in backward");
  }
};

/// A rank that has all the memory it may have.
void limit_memory() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t now = static_cast<rlim_t>(pages) * 4096;
  const rlimit limit = {now + 4 * kBlockBytes, now + 4 * kBlockBytes};
  require<InvalidState>(::setrlimit(RLIMIT_AS, &limit) == 0,
                        [] { return "setrlimit failed"; });
}

template <class Allocate>
void exhaust_memory(Allocate&& allocate) {
  limit_memory();
  std::vector<decltype(allocate())> blocks;
  for (;;) blocks.push_back(allocate());
}

/// Trains, and does what its fault says.
class FaultyRank {
 public:
  FaultyRank(const World& world, std::string kind, JobBoard& board)
      : world_(world), kind_(std::move(kind)), board_(board) {}

  void run() {
    torch::manual_seed(1);
    if (kind_ != "none" && kind_ != "slow") board_.note_failing();
    model_ = std::make_shared<ChainImpl>(kind_);
    const FullyShardOptions options = {.mesh = init_device_mesh(world_)};
    fully_shard(*model_->first, options);
    fully_shard(*model_->second, options);
    fully_shard(*model_->third, options);
    if (kind_ == "depth") fully_shard(*model_->fourth, options);
    fully_shard(*model_, options);
    torch::optim::SGD optimizer(model_->parameters(), 0.1);
    const int batches = kBatches + (kind_ == "more") - (kind_ == "fewer");
    for (int batch = 0; batch < batches; ++batch) step(optimizer, batch);
    std::puts("trained");
  }

 private:
  bool is(const char* kind, int batch) {
    if (kind_ != kind || batch != kFaultyBatch) return false;
    board_.note_failing();
    return true;
  }

  void step(torch::optim::Optimizer& optimizer, int batch) {
    Tensor loss = forward(torch::full({2, kWidth}, 0.1 * (batch + 1)), batch)
                      .pow(2)
                      .mean();
    loss.backward();
    if (is("optimizer", batch)) fail("optimizer");
    optimizer.step();
    optimizer.zero_grad();
  }

  Tensor forward(const Tensor& input, int batch) {
    Tensor x = model_->first(input);
    fail_in_forward(batch);
    if (is("order", batch)) return model_->second(model_->third(x));
    x = model_->second(x);
    if (is("backward", batch)) x = ThrowsInBackward::apply(x);
    if (is("branch", batch)) return x;
    return model_->third(x);
  }

  void fail_in_forward(int batch) {
    if (is("kill", batch)) ::raise(SIGKILL);
    if (is("stop", batch)) ::raise(SIGSTOP);
    if (is("slow", batch)) std::this_thread::sleep_for(1s);
    if (is("hang", batch)) std::this_thread::sleep_for(1h);
    if (is("forward", batch)) fail("forward");
    if (is("hook", batch)) {
      model_->second->weight.register_hook([](Tensor) { fail("a hook"); });
    }
    if (is("memory", batch)) {
      exhaust_memory([] { return torch::empty({kBlockBytes}, torch::kChar); });
    }
    if (is("bad_alloc", batch)) {
      exhaust_memory([] { return std::make_unique<char[]>(kBlockBytes); });
    }
  }

  [[noreturn]] static void fail(const std::string& where) {
    throw std::runtime_error("made to fail in " + where);
  }

  World world_;
  std::string kind_;
  JobBoard& board_;
  std::shared_ptr<ChainImpl> model_;
};

}  // namespace

int run_rank(int rank, int size, int port, const Fault& fault,
             JobBoard& board) {
  at::set_num_threads(1);
  const InitOptions options = {.init_method = str("tcp://127.0.0.1:", port),
                               .rank = rank,
                               .world_size = size,
                               .timeout = kTimeout};
  // The time-out counts from here on: no rank may be late for other reasons.
  ++board.ready;
  while (board.ready < size) std::this_thread::sleep_for(5ms);
  return cli::run_on_world(
      "faults", [] {}, [&] { return options; },
      [&](const World& world) {
        FaultyRank(world, rank == fault.rank ? fault.kind : "none", board)
            .run();
        return 0;
      });
}

}  // namespace tessera::test
