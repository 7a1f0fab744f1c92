#include "benchmarks/checkpoint_bench/run.h"

#include <ATen/DeviceAccelerator.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "benchmarks/checkpoint_bench/disk.h"
#include "benchmarks/checkpoint_bench/memory.h"
#include "tessera/checkpoint/async_saver.h"
#include "tessera/tessera.h"
#include "tessera/train/build_model_meta.h"
#include "tessera/train/model_presets.h"

namespace checkpoint_bench {
namespace {

namespace checkpoint = tessera::checkpoint;
using Clock = std::chrono::steady_clock;
using tessera::train::LanguageModelPtr;

constexpr double kGb = 1e9;
constexpr double kMib = 1 << 20;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t middle = values.size() / 2;
  return values.size() % 2 ? values[middle]
                           : (values[middle - 1] + values[middle]) / 2;
}

std::vector<double> rounded(std::vector<double> values) {
  for (double& value : values) value = std::round(value * 1000) / 1000;
  return values;
}

double rounded(double value) { return std::round(value * 1000) / 1000; }

tessera::train::ModelConfig config_of(const Options& options) {
  auto config = tessera::train::model_preset(options.preset).model;
  if (options.layers > 0) config.layers = options.layers;
  return config;
}

LanguageModelPtr sharded_model(const tessera::train::ModelConfig& config,
                               const tessera::World& world) {
  auto model = tessera::train::build_model_meta(config);
  const tessera::FullyShardOptions how{
      .mesh = tessera::init_device_mesh(
          world, {.shape = {world.size()}, .axes = {"dp_shard"}})};
  for (auto* unit : model->units()) tessera::fully_shard(*unit, how);
  tessera::fully_shard(*model, how);
  tessera::materialize(
      *model, {.init = [](torch::nn::Module& module, const std::string&) {
        if (auto* linear = module.as<torch::nn::Linear>()) {
          torch::nn::init::normal_(linear->weight, 0, 0.02);
        } else if (auto* embedding = module.as<torch::nn::Embedding>()) {
          torch::nn::init::normal_(embedding->weight, 0, 0.02);
        }
      }});
  return model;
}

class Bench {
 public:
  Bench(const Options& options, const tessera::World& world)
      : options_(options),
        world_(world),
        config_(config_of(options)),
        model_(sharded_model(config_, world)),
        optimizer_(model_->parameters(), torch::optim::AdamWOptions(3e-4)),
        num_bytes_(12 * tessera::train::num_parameters(config_)),
        raw_bytes_(options.raw_gb > 0
                       ? static_cast<int64_t>(options.raw_gb * kGb)
                       : num_bytes_),
        saver_({.world = world,
                .num_threads = static_cast<size_t>(options.num_threads)},
               checkpoint::Staging::beside_steps),
        group_(tessera::distributed::new_group(world)) {
    train(8);
  }

  nlohmann::ordered_json run() {
    if (world_.rank() == 0) {
      std::filesystem::remove_all(options_.folder);
      std::filesystem::create_directories(options_.folder);
    }
    world_.barrier();
    measure_disk();
    measure_saves();
    measure_loads();
    measure_async();
    measure_disk();
    world_.barrier();
    if (world_.rank() == 0) std::filesystem::remove_all(options_.folder);
    return report();
  }

 private:
  [[nodiscard]] std::string path(const std::string& name) const {
    return options_.folder + "/" + name;
  }

  void wait_for_all() {
    if (!world_.device().is_cpu()) {
      at::accelerator::synchronizeDevice(world_.device().index());
    }
    world_.barrier();
  }

  double timed(const std::function<void()>& body) {
    wait_for_all();
    const auto start = Clock::now();
    body();
    wait_for_all();
    return seconds_since(start);
  }

  // The slowest rank's time is that of all: they meet after each.
  void measure_disk() {
    const int64_t mine = raw_bytes_ / world_.size();
    for (int64_t round = 0; round < options_.rounds; ++round) {
      wait_for_all();
      const RawSpeed speed =
          raw_speed(path("raw" + std::to_string(world_.rank())), mine);
      raw_write_.push_back(speed.write_s);
      raw_read_.push_back(speed.read_s);
    }
  }

  checkpoint::SaveOptions save_options() const {
    return {.world = world_,
            .num_threads = static_cast<size_t>(options_.num_threads)};
  }

  void measure_saves() {
    for (int64_t round = 0; round < options_.rounds; ++round) {
      if (world_.rank() == 0) std::filesystem::remove_all(path("sync"));
      saves_.push_back(timed([&] {
        checkpoint::save(path("sync"), tessera::state_of(*model_, optimizer_),
                         save_options());
      }));
    }
  }

  void measure_loads() {
    for (int64_t round = 0; round < options_.rounds; ++round) {
      if (world_.rank() == 0) drop_pages(path("sync"));
      wait_for_all();
      (void)take_peak_resident_bytes();
      const int64_t before = resident_bytes();
      loads_.push_back(timed([&] {
        (void)checkpoint::load(
            path("sync"), tessera::state_of(*model_, optimizer_),
            {.world = world_,
             .num_threads = static_cast<size_t>(options_.num_threads)});
      }));
      load_peaks_.push_back(
          static_cast<double>(take_peak_resident_bytes() - before) / kMib);
    }
    if (world_.rank() == 0) std::filesystem::remove_all(path("sync"));
  }

  void train(int64_t num_tokens) {
    const auto tokens =
        torch::zeros({1, num_tokens},
                     at::TensorOptions(torch::kLong).device(world_.device()));
    const auto loss = model_->sum_of_losses(tokens, tokens);
    loss.div(num_tokens).backward();
    saver_.before_change();
    optimizer_.step();
    optimizer_.zero_grad();
  }

  // In place of a training step that is not wanted.
  void multiply() {
    for (int i = 0; i < 4; ++i) work_ = torch::mm(work_, work_).tanh_();
    (void)work_.sum().item<float>();
  }

  // A step, after which all ranks know whether one of them still saves.
  bool step(bool saving) {
    if (options_.train_tokens > 0) {
      train(options_.train_tokens);
    } else {
      multiply();
    }
    const auto flag =
        torch::full({1}, saving ? 1 : 0,
                    at::TensorOptions(torch::kInt).device(world_.device()));
    tessera::distributed::all_reduce(flag, group_, tessera::ReduceOp::max)
        .wait();
    return flag.item<int>() != 0;
  }

  void measure_steps() {
    std::vector<double> steps;
    for (int i = 0; i < 20; ++i) {
      const auto start = Clock::now();
      (void)step(false);
      steps.push_back(seconds_since(start));
    }
    step_ = median(steps);
  }

  void measure_async() {
    measure_steps();
    for (int64_t save = 0; save < options_.async_saves; ++save) {
      wait_for_all();
      const auto start = Clock::now();
      saver_.save(path("async"), tessera::state_of(*model_, optimizer_));
      requests_.push_back(seconds_since(start));
      int64_t num_steps = 1;
      while (step(saver_.saving())) ++num_steps;
      saver_.wait();
      stalls_.push_back(seconds_since(start) -
                        static_cast<double>(num_steps) * step_);
      resident_.push_back(static_cast<double>(resident_bytes()) / kMib);
    }
  }

  [[nodiscard]] nlohmann::ordered_json report() const {
    const double gb = static_cast<double>(num_bytes_) / kGb;
    const double raw_gb = static_cast<double>(raw_bytes_) / kGb;
    const double raw_write = raw_gb / median(raw_write_);
    const double raw_read = raw_gb / median(raw_read_);
    const size_t settled = std::min<size_t>(2, resident_.size() - 1);
    return {
        {"peer", "tessera"},
        {"torch", TORCH_VERSION},
        {"preset", options_.preset},
        {"layers", config_.layers},
        {"world", world_.size()},
        {"gb", rounded(gb)},
        {"raw_gb", rounded(raw_gb)},
        {"raw_write_gbps", rounded(raw_write)},
        {"raw_read_gbps", rounded(raw_read)},
        {"save_s", rounded(saves_)},
        {"save_gbps", rounded(gb / median(saves_))},
        {"save_of_raw", rounded(gb / median(saves_) / raw_write)},
        {"load_s", rounded(loads_)},
        {"load_gbps", rounded(gb / median(loads_))},
        {"load_of_raw", rounded(gb / median(loads_) / raw_read)},
        {"load_peak_mib", rounded(std::ranges::max(load_peaks_))},
        {"train_tokens", options_.train_tokens},
        {"step_s", rounded(step_)},
        {"async_request_s", rounded(requests_)},
        {"async_stall_s", rounded(stalls_)},
        {"host_mib", rounded(resident_.at(settled))},
        {"host_growth_mib", rounded(resident_.back() - resident_.at(settled))}};
  }

  const Options& options_;
  const tessera::World& world_;
  const tessera::train::ModelConfig config_;
  LanguageModelPtr model_;
  tessera::AdamW optimizer_;
  const int64_t num_bytes_;  // of parameters and both moments
  const int64_t raw_bytes_;
  checkpoint::AsyncSaver saver_;
  tessera::distributed::ProcessGroup group_;
  torch::Tensor work_ = torch::rand({768, 768}) / 32;
  double step_ = 0;
  std::vector<double> raw_write_, raw_read_, saves_, loads_;
  std::vector<double> load_peaks_, requests_, stalls_, resident_;
};

}  // namespace

std::string run(const Options& options, const tessera::World& world) {
  return Bench(options, world).run().dump();
}

}  // namespace checkpoint_bench
