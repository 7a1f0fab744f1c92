// A long run on CPU ranks, with random accumulation, evaluation, saves and
// loads between: tessera run -n 4 -- soak STEPS
//
// Rank 0 trains the same model plainly beside it, over the batches of all
// ranks. At a fifth of the steps and at the end each rank counts the bytes of
// its live tensors and of its process. Ends with 0 when
//
//   - each loss is that of the plain model within 1e-9, or 1e-9 of it if that
//     is more: all is double, so that only the order of sums differs;
//   - as many tensor bytes live at the end as at a fifth;
//   - the process has grown by less than 4 MiB since: in memory of its own
//     (RssAnon), for the rings of shared memory fill up once.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <c10/core/DefaultDtype.h>
#include <malloc.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <string>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/shard/fully_shard.h"
#include "tests/memory/counting_allocator.h"

namespace tessera::test {
namespace {

using torch::Tensor;

constexpr int kWidth = 96;
constexpr int kBlocks = 4;
constexpr int kRows = 6;  // of a batch
constexpr double kTolerance = 1e-9;
constexpr int64_t kMaxGrowth = 4 << 20;

struct SoakNetImpl : torch::nn::Module {
  torch::nn::ModuleList blocks;
  SoakNetImpl() {
    register_module("blocks", blocks);
    for (int i = 0; i < kBlocks; ++i) {
      blocks->push_back(torch::nn::Linear(kWidth, kWidth));
    }
  }
  Tensor forward(Tensor x) {
    for (auto& block : *blocks) {
      x = x + torch::tanh(block->as<torch::nn::Linear>()->forward(x));
    }
    return x;
  }
};
TORCH_MODULE(SoakNet);

/// The numbers of micro-batch `number` of one rank: the same wherever asked
/// for.
Tensor batch_of(int rank, int64_t number) {
  auto generator = at::detail::createCPUGenerator(1000 * number + rank);
  return torch::randn({kRows, kWidth}, generator, torch::kDouble);
}

/// To copy half of the input into the other half.
Tensor loss_of(SoakNet& net, const Tensor& input) {
  return (net->forward(input) - input.roll(kWidth / 2, 1)).pow(2).mean();
}

struct Memory {
  int64_t tensors = 0;
  int64_t process = 0;
};

int64_t process_bytes() {
  ::malloc_trim(0);
  std::ifstream status("/proc/self/status");
  std::string name;
  int64_t kib = 0;
  while (status >> name) {
    if (name == "RssAnon:" && status >> kib) return kib << 10;
  }
  throw InvalidState("no RssAnon in /proc/self/status");
}

class Soak {
 public:
  Soak(const World& world, int steps) : world_(world), steps_(steps) {}

  int run() {
    torch::manual_seed(1);
    net_ = SoakNet();
    if (world_.rank() == 0) {
      plain_ = SoakNet();
      copy_values(*plain_, *net_);
      plain_optimizer_ = make_optimizer(*plain_);
    }
    const FullyShardOptions options = {.mesh = init_device_mesh(world_)};
    for (auto& block : *net_->blocks) fully_shard(*block, options);
    fully_shard(*net_, options);
    optimizer_ = make_optimizer(*net_);
    const auto start = std::chrono::steady_clock::now();
    for (int number = 1; number <= steps_; ++number) {
      step();
      if (number == std::max(1, steps_ / 5)) early_ = memory();
    }
    const std::chrono::duration<double> time =
        std::chrono::steady_clock::now() - start;
    return report(time.count());
  }

 private:
  using Optimizer = std::unique_ptr<torch::optim::AdamW>;

  static void copy_values(SoakNetImpl& to, SoakNetImpl& from) {
    const torch::NoGradGuard no_grad;
    const auto values = from.parameters();
    auto targets = to.parameters();
    for (size_t i = 0; i < values.size(); ++i) targets[i].copy_(values[i]);
  }

  static Optimizer make_optimizer(SoakNetImpl& net) {
    return std::make_unique<torch::optim::AdamW>(
        net.parameters(), torch::optim::AdamWOptions(1e-3));
  }

  // All ranks draw the same.
  bool happens(int of_100) {
    return static_cast<int>(random_() % 100) < of_100;
  }

  void step() {
    const int micro_batches = 1 + static_cast<int>(random_() % 3);
    for (int i = 0; i < micro_batches; ++i, ++batch_) {
      Tensor loss = loss_of(net_, batch_of(world_.rank(), batch_));
      (loss / micro_batches).backward();
      compare(loss, micro_batches);
    }
    optimizer_->step();
    optimizer_->zero_grad();
    if (plain_optimizer_) {
      plain_optimizer_->step();
      plain_optimizer_->zero_grad();
    }
    // All once at first: code and threads that come into use also take memory.
    const bool first = optimizer_steps_++ == 0;
    if (happens(20) || first) evaluate();
    if (happens(5) || first) save_and_load();
  }

  void evaluate() {
    const torch::NoGradGuard no_grad;
    net_->eval();
    compare(loss_of(net_, batch_of(world_.rank(), -batch_)), 0);
    net_->train();
    ++evaluations_;
  }

  void save_and_load() {
    const std::string path = folder() + "/last";
    State state = state_of(*net_, *optimizer_);
    checkpoint::save(path, state);
    if (happens(50) || saves_ == 0) checkpoint::load(path, state);
    ++saves_;
  }

  // All ranks' mean against the plain model's; 0 micro-batches: no backward.
  void compare(const Tensor& loss, int micro_batches) {
    const double own = loss.item<double>();
    double sum = 0;
    const std::string_view bytes(reinterpret_cast<const char*>(&own),
                                 sizeof own);
    for (const std::string& other : world_.exchange("loss", bytes)) {
      double value = 0;
      std::copy(other.begin(), other.end(), reinterpret_cast<char*>(&value));
      sum += value;
    }
    if (!plain_) return;
    const double mean = sum / world_.size();
    const double expected = plain_loss(micro_batches);
    error_ =
        std::max(error_, std::abs(mean - expected) / std::max(1.0, expected));
  }

  double plain_loss(int micro_batches) {
    const int64_t number = micro_batches > 0 ? batch_ : -batch_;
    double mean = 0;
    for (int rank = 0; rank < world_.size(); ++rank) {
      Tensor loss = loss_of(plain_, batch_of(rank, number)) / world_.size();
      if (micro_batches > 0) (loss / micro_batches).backward();
      mean += loss.item<double>();
    }
    return mean;
  }

  Memory memory() { return {bytes_.now(), process_bytes()}; }

  int report(double seconds) {
    const Memory late = memory();
    const int64_t growth = late.process - early_.process;
    const bool good = error_ <= kTolerance && late.tensors == early_.tensors &&
                      growth < kMaxGrowth;
    std::cout << str("rank ", world_.rank(), ": ", steps_, " steps in ",
                     seconds, " s, ", batch_, " batches, ", evaluations_,
                     " evaluations, ", saves_, " saves; live tensors ",
                     early_.tensors, " then ", late.tensors, " bytes; process ",
                     early_.process, " then ", late.process, " bytes");
    if (plain_) std::cout << "; largest error of a loss " << error_;
    std::cout << (good ? "" : "  FAILED") << std::endl;
    world_.barrier();
    if (world_.rank() == 0) std::filesystem::remove_all(folder());
    return good ? 0 : 1;
  }

  // The same on all ranks of one machine: they have one parent.
  static std::string folder() {
    return (std::filesystem::temp_directory_path() / str("soak_", ::getppid()))
        .string();
  }

  CountingAllocator counting_;
  Bytes bytes_;
  CountingAllocator::Scope scope_{bytes_};
  World world_;
  int steps_;
  std::mt19937 random_{7};
  SoakNet net_{nullptr};
  SoakNet plain_{nullptr};
  Optimizer optimizer_;
  Optimizer plain_optimizer_;
  int64_t batch_ = 0;
  int64_t optimizer_steps_ = 0;
  int evaluations_ = 0;
  int saves_ = 0;
  double error_ = 0;
  Memory early_;
};

}  // namespace
}  // namespace tessera::test

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  at::set_num_threads(1);
  c10::set_default_dtype(c10::scalarTypeToTypeMeta(torch::kDouble));
  const tessera::World world =
      tessera::init_distributed({.timeout = std::chrono::seconds(60)});
  return tessera::test::Soak(world, std::stoi(argv[1])).run();
}
