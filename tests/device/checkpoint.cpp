// Saves and loads of state on the devices of this job's ranks, bit for bit:
// of work that is still to be done when they are asked for, and of state that
// changes right after. Prints a line for each case; exits with 1 when any
// differs. FOLDER is made, and removed in the end. On one rank or more:
//
//   tessera run -n 2 -- device_checkpoint FOLDER
#include <ATen/DeviceAccelerator.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/checkpoint/async_saver.h"
#include "tessera/comm/world.h"
#include "tessera/device/stream.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/optim/adamw.h"
#include "tessera/shard/fully_shard.h"

namespace {

using namespace tessera;
using checkpoint::AsyncSaver;
using checkpoint::Staging;
using torch::Tensor;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Checks {
 public:
  Checks(const World& world, std::string folder)
      : world_(world),
        device_(world.device()),
        folder_(std::move(folder)),
        count_(device_.is_cuda() ? 1 << 27 : 1 << 20) {}

  int run() {
    check_save_of_pending_work();
    check_load_before_and_after_work();
    check_dtypes_and_strides();
    check_changes_right_after();
    check_beside_steps();
    check_training();
    return failures_;
  }

 private:
  void expect(const std::string& what, bool ok) {
    if (!ok) ++failures_;
    if (world_.rank() == 0 || !ok) {
      std::printf("rank %d, %s: %s\n", world_.rank(), what.c_str(),
                  ok ? "ok" : "DIFFERS");
    }
  }

  [[nodiscard]] std::string path(const std::string& name) const {
    return folder_ + "/" + name;
  }

  // Other values on each rank, 512 MiB on a GPU.
  [[nodiscard]] Tensor large() const {
    return torch::arange(count_, torch::dtype(torch::kInt).device(device_)) *
               7919 +
           world_.rank();
  }

  // A tensor that each rank has for itself.
  [[nodiscard]] State state_with(const Tensor& tensor) const {
    State state;
    state.add(str("large.", world_.rank()), tensor);
    return state;
  }

  // Of the checkpoint, which also has what the other ranks saved.
  void load_into(const std::string& name, const Tensor& tensor) const {
    (void)checkpoint::load(path(name), state_with(tensor),
                           {.world = world_, .strict = checkpoint::Strict::no});
  }

  [[nodiscard]] Tensor loaded(const std::string& name) const {
    Tensor tensor =
        torch::zeros({count_}, torch::dtype(torch::kInt).device(device_));
    load_into(name, tensor);
    return tensor;
  }

  // Keeps the current stream busy for a while.
  void work_long() const {
    const int64_t width = device_.is_cuda() ? 8192 : 64;
    Tensor x = torch::ones({width, width}, torch::device(device_)) / width;
    for (int i = 0; i < 20; ++i) x = torch::mm(x, x);
  }

  // On a stream that waits for no other, what is saved is still being made.
  void check_save_of_pending_work() {
    const Tensor expected = large();
    Tensor tensor = torch::zeros_like(expected);
    synchronize();
    const StreamScope scope(make_stream(device_, StreamPriority::normal));
    work_long();
    tensor.copy_(expected);
    checkpoint::save(path("pending"), state_with(tensor), {.world = world_});
    tensor.zero_();
    expect("save after pending work",
           torch::equal(loaded("pending"), expected));
  }

  void check_load_before_and_after_work() {
    const Tensor expected = large();
    Tensor tensor = torch::zeros_like(expected);
    synchronize();
    const StreamScope scope(make_stream(device_, StreamPriority::normal));
    work_long();
    tensor.fill_(5);  // comes before the load
    load_into("pending", tensor);
    const Tensor seen = tensor + 1;  // comes after
    expect("load between work", torch::equal(seen, expected + 1));
  }

  void check_dtypes_and_strides() {
    const auto options = torch::device(device_);
    for (const auto dtype : {torch::kBFloat16, torch::kHalf, torch::kDouble,
                             torch::kFloat8_e4m3fn, torch::kBool}) {
      const Tensor values =
          torch::arange(6000, options).remainder(3).view({60, 100}).to(dtype);
      const auto both = {values, values.t()};
      for (const Tensor& tensor : both) {
        checkpoint::save(path("dtype"), state_with(tensor), {.world = world_});
        Tensor same = torch::zeros_like(tensor);
        load_into("dtype", same);
        Tensor turned = torch::zeros_like(tensor.t().contiguous()).t();
        load_into("dtype", turned);
        const Tensor wanted = tensor.to(torch::kFloat);
        expect(str("dtype ", c10::toString(dtype), ", strides of ",
                   tensor.stride(0), " and ", tensor.stride(1)),
               torch::equal(same.to(torch::kFloat), wanted) &&
                   torch::equal(turned.to(torch::kFloat), wanted));
      }
    }
  }

  void check_changes_right_after() {
    AsyncSaver saver({.world = world_});
    Tensor tensor = large();
    std::vector<double> calls;
    for (int i = 0; i < 3; ++i) {
      const Tensor expected = tensor.clone();
      synchronize();
      const auto start = Clock::now();
      saver.save(path(str("after-", i)), state_with(tensor));
      calls.push_back(seconds_since(start));
      tensor.add_(1);
      saver.wait();
      expect(str("changed right after save ", i),
             torch::equal(loaded(str("after-", i)), expected));
    }
    report("save calls", calls);
  }

  void check_beside_steps() {
    AsyncSaver saver({.world = world_}, Staging::beside_steps);
    Tensor tensor = large();
    std::vector<double> calls;
    for (int i = 0; i < 4; ++i) {
      const Tensor expected = tensor.clone();
      synchronize();
      const auto start = Clock::now();
      saver.save(path("beside"), state_with(tensor));
      calls.push_back(seconds_since(start));
      const Tensor read = tensor + 1;  // a step may read meanwhile
      saver.before_change();
      tensor.add_(1);
      saver.wait();
      expect(str("changed after before_change ", i),
             torch::equal(loaded("beside"), expected) &&
                 torch::equal(read, tensor));
    }
    report("save calls beside steps", calls);
  }

  void report(const std::string& what, const std::vector<double>& seconds) {
    if (world_.rank() != 0) return;
    std::printf("%s, %.0f MB of each rank (s):", what.c_str(),
                4e-6 * static_cast<double>(count_));
    for (const double value : seconds) std::printf(" %.4f", value);
    std::printf("\n");
  }

  struct Trained {
    torch::nn::Sequential model;
    std::unique_ptr<AdamW> optimizer;

    void step(int64_t number, const std::function<void()>& before_update) {
      const auto device = model->parameters()[0].device();
      const Tensor x = torch::arange(4 * 512, torch::device(device))
                           .view({4, 512})
                           .add(number)
                           .sin();
      model->forward(x).pow(2).mean().backward();
      before_update();
      optimizer->step();
      optimizer->zero_grad();
    }
    [[nodiscard]] std::vector<Tensor> tensors() const {
      std::vector<Tensor> all;
      for (const Tensor& parameter : model->parameters()) {
        const ParameterState state = optimizer->state_of(parameter);
        for (const Tensor& tensor :
             {local_of(parameter), state.exp_avg, state.exp_avg_sq}) {
          all.push_back(tensor.detach().clone());
        }
      }
      return all;
    }
    static Tensor local_of(const Tensor& parameter) {
      return state_tensor(parameter).local;
    }
  };

  [[nodiscard]] Trained make_trained() const {
    torch::manual_seed(3);
    torch::nn::Sequential model(torch::nn::Linear(512, 4096), torch::nn::GELU(),
                                torch::nn::Linear(4096, 512));
    model->to(device_);
    fully_shard(*model, {.mesh = init_device_mesh(world_)});
    auto optimizer = std::make_unique<AdamW>(model->parameters(),
                                             torch::optim::AdamWOptions(1e-2));
    return {model, std::move(optimizer)};
  }

  // A model and its optimizer, saved at every other step of its training.
  void check_training() {
    AsyncSaver saver({.world = world_}, Staging::beside_steps);
    Trained trained = make_trained();
    std::vector<std::vector<Tensor>> expected;
    for (int i = 0; i < 10; ++i) {
      trained.step(i, [&] { saver.before_change(); });
      if (i % 2 == 0) continue;
      expected.push_back(trained.tensors());
      saver.save(path(str("step-", i)),
                 state_of(*trained.model, *trained.optimizer));
    }
    saver.wait();
    for (int i = 1; i < 10; i += 2) {
      Trained other = make_trained();
      (void)checkpoint::load(path(str("step-", i)),
                             state_of(*other.model, *other.optimizer),
                             {.world = world_});
      bool same = true;
      const std::vector<Tensor> got = other.tensors();
      for (size_t t = 0; t < got.size(); ++t) {
        same = same && torch::equal(got[t], expected[i / 2][t]);
      }
      expect(str("model and AdamW of step ", i), same);
    }
  }

  void synchronize() const {
    if (!device_.is_cpu()) at::accelerator::synchronizeDevice(device_.index());
  }

  const World& world_;
  const c10::Device device_;
  const std::string folder_;
  const int64_t count_;
  int failures_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc != 2) {
    std::fprintf(stderr, "device_checkpoint: give it a folder that it makes\n");
    return 2;
  }
  const World world = init_distributed();
  const std::string folder = argv[1];
  if (world.rank() == 0) std::filesystem::create_directories(folder);
  world.barrier();
  const int failures = Checks(world, folder).run();
  world.barrier();
  if (world.rank() == 0) std::filesystem::remove_all(folder);
  std::printf("rank %d: %d failures\n", world.rank(), failures);
  return failures == 0 ? 0 : 1;
}
