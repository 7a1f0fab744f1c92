#include "benchmarks/step_bench/run.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "benchmarks/step_bench/models.h"
#include "tessera/device/memory_history.h"
#include "tessera/shard/trace_range.h"
#include "tessera/tessera.h"
#include "tessera/train/step_profiler.h"

namespace step_bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kNumBatches = 64;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 ? values[middle]
                           : (values[middle - 1] + values[middle]) / 2;
}

const char* name_of(Precision precision) {
  switch (precision) {
    case Precision::mixed_bfloat16:
      return "bf16";
    case Precision::mixed_float16:
      return "fp16";
    case Precision::float32:
      return "fp32";
  }
  return "";
}

double rounded(double value, int digits) {
  const double scale = std::pow(10, digits);
  return std::round(value * scale) / scale;
}

void synchronize(c10::Device device) {
  if (!device.is_cpu()) {
    at::accelerator::synchronizeDevice(device.index());
  }
}

// A GradScaler changes gradients after backward.
bool takes_norm_in_backward(const Options& options) {
  return options.stepping == Stepping::clipped &&
         options.precision != Precision::mixed_float16 &&
         options.strategy == Strategy::sharded && !options.late_norm;
}

const char* name_of(Strategy strategy) {
  switch (strategy) {
    case Strategy::sharded:
      return "tessera";
    case Strategy::data_parallel:
      return "tessera-ddp";
    case Strategy::plain:
      return "plain";
  }
  return "";
}

/// The steps, and what was measured of them.
class Bench {
 public:
  Bench(const Options& options, const tessera::World& world)
      : options_(options),
        device_(world.device()),
        mesh_(tessera::init_device_mesh(
            world, {.shape = {world.size()}, .axes = {"dp_shard"}})),
        model_(options.strategy == Strategy::sharded
                   ? sharded_model(options, mesh_)
                   : plain_model(options, device_)),
        optimizer_(model_->parameters(), torch::optim::AdamWOptions(3e-4)
                                             .betas({0.9, 0.95})
                                             .weight_decay(0.1)) {
    auto random = at::make_generator<at::CPUGeneratorImpl>(1000 + world.rank());
    data_ = torch::randint(0, options.model.vocab,
                           {kNumBatches, options.batch, options.model.seq + 1},
                           random, torch::kLong);
    if (options.same_start) draw_weights_by_name(*model_);
    if (options.strategy == Strategy::data_parallel) {
      parallel_ = std::make_unique<Parallel>(
          std::make_shared<LossImpl>(model_),
          tessera::DataParallelOptions{.mesh = mesh_});
    }
    if (options.stepping == Stepping::in_backward) {
      tessera::step_in_backward(*model_, [this](const auto& shards) {
        optimizer_.step_only(shards);
      });
    }
    if (takes_norm_in_backward(options)) {
      tessera::set_norm_in_backward(*model_, tessera::NormInBackward::on);
    }
    if (options.issue == Issue::graph) {
      graphed_ = std::make_unique<tessera::GraphedStep>(
          *model_, optimizer_, mesh_,
          [this](const auto& batches) {
            return tessera::TensorVector{train_step(batches)};
          },
          tessera::GraphedStepOptions{.warmup = kGraphWarmup});
    }
  }

  void run() {
    for (int64_t step = 0; step < options_.warmup + options_.steps; ++step) {
      const bool noted = step == first_of_peak() &&
                         !options_.memory_history.empty() &&
                         mesh_.world().rank() == 0;
      if (step == first_of_peak()) {
        reset_peak();
      }
      if (noted) tessera::start_memory_history(device_);
      measure(step);
      if (noted) tessera::write_memory_history(options_.memory_history);
    }
    if (!options_.trace.empty()) trace();
  }

  [[nodiscard]] nlohmann::ordered_json report() const;
  void add_device_numbers(nlohmann::ordered_json& out,
                          double tokens_per_s) const;

 private:
  void measure(int64_t step) {
    synchronize(device_);
    const auto start = Clock::now();
    auto loss = graphed_ ? (*graphed_)(batches_of(step))[0]
                         : train_step(batches_of(step));
    const auto issued = Clock::now();
    synchronize(device_);
    if (step >= options_.warmup) {
      times_.push_back(seconds_between(start, Clock::now()));
      issue_times_.push_back(seconds_between(start, issued));
    }
    losses_.push_back(loss);
  }

  /// After the steps that count: a trace slows them down.
  void trace() {
    const bool mine = mesh_.world().rank() == 0;
    if (mine) tessera::train::start_trace(device_);
    for (int64_t step = 0; step < 3; ++step) {
      const tessera::TraceRange range(tessera::train::step_label(step).c_str());
      (void)(graphed_ ? (*graphed_)(batches_of(step))[0]
                      : train_step(batches_of(step)));
      synchronize(device_);
    }
    if (mine) tessera::train::write_trace(device_, options_.trace);
  }

  /// A graph's memory is taken when it is captured, not when it is replayed.
  [[nodiscard]] int64_t first_of_peak() const {
    return graphed_ ? kGraphWarmup : options_.warmup;
  }

  /// One for each backward, on the host.
  [[nodiscard]] tessera::TensorVector batches_of(int64_t step) const {
    tessera::TensorVector batches;
    for (int64_t micro = 0; micro < options_.accum; ++micro) {
      batches.push_back(data_[(step * options_.accum + micro) % kNumBatches]);
    }
    return batches;
  }

  /// Returns the loss of the last micro-batch.
  torch::Tensor train_step(const tessera::TensorVector& batches) {
    torch::Tensor loss;
    for (size_t micro = 0; micro < batches.size(); ++micro) {
      const bool last = micro + 1 == batches.size();
      if (batches.size() > 1 && options_.strategy == Strategy::sharded) {
        tessera::set_requires_gradient_sync(
            *model_, last ? tessera::Sync::on : tessera::Sync::off);
      }
      std::optional<tessera::NoSync> no_sync;
      if (parallel_ && !last) no_sync.emplace(*parallel_);
      loss = forward(batches[micro]);
      (is_scaled() ? scaler_.scale(loss) : loss).backward();
    }
    if (is_scaled()) {
      scaled_update();
    } else {
      update();
    }
    optimizer_.zero_grad();
    return loss.detach();
  }

  [[nodiscard]] bool is_scaled() const {
    return options_.precision == Precision::mixed_float16;
  }

  void update() {
    if (options_.stepping == Stepping::clipped) {
      const auto norm = tessera::get_total_norm(model_->parameters());
      optimizer_.step_clipped(norm, 1.0);
    } else {
      optimizer_.step();
    }
  }

  void scaled_update() {
    if (options_.stepping == Stepping::clipped) {
      scaler_.unscale_(optimizer_);
      tessera::clip_grad_norm_(model_->parameters(), 1.0);
    }
    scaler_.step(optimizer_);
    scaler_.update();
  }

  torch::Tensor forward(const torch::Tensor& rows) {
    const auto tokens = rows.to(device_, /*non_blocking=*/true);
    const auto seq = options_.model.seq;
    const auto targets = tokens.narrow(1, 1, seq);
    return sum_of_losses(tokens.narrow(1, 0, seq), targets) /
           (targets.numel() * options_.accum);
  }

  torch::Tensor sum_of_losses(const torch::Tensor& tokens,
                              const torch::Tensor& targets) {
    if (!parallel_) return model_->sum_of_losses(tokens, targets);
    std::optional<Autocast> autocast;
    if (options_.precision != Precision::float32) {
      autocast.emplace(device_.type());
    }
    return (*parallel_)(tokens, targets);
  }

  void reset_peak() {
    if (!device_.is_cpu()) {
      at::getDeviceAllocator(device_.type())->resetPeakStats(device_.index());
    }
  }

  const Options& options_;
  const c10::Device device_;
  const tessera::DeviceMesh mesh_;
  LanguageModelPtr model_;
  std::unique_ptr<Parallel> parallel_;  // Strategy::data_parallel
  tessera::AdamW optimizer_;
  tessera::GradScaler scaler_;
  torch::Tensor data_;
  std::unique_ptr<tessera::GraphedStep> graphed_;
  std::vector<double> times_, issue_times_;
  std::vector<torch::Tensor> losses_;
};

void Bench::add_device_numbers(nlohmann::ordered_json& out,
                               double tokens_per_s) const {
  const auto stats =
      at::getDeviceAllocator(device_.type())->getDeviceStats(device_.index());
  constexpr double kGib = 1 << 30;
  out["gpu"] = device_.str();
  out["mfu"] =
      rounded(tokens_per_s * tessera::train::flops_per_token(options_.model) /
                  (options_.peak_tflops * 1e12),
              4);
  out["peak_alloc_gib"] = rounded(stats.allocated_bytes[0].peak / kGib, 3);
  out["peak_reserved_gib"] = rounded(stats.reserved_bytes[0].peak / kGib, 3);
  // Of the whole device: other processes, communicators and contexts too.
  const auto [free, total] =
      at::getDeviceAllocator(device_.type())->getMemoryInfo(device_.index());
  out["device_used_gib"] = rounded((total - free) / kGib, 3);
}

nlohmann::ordered_json Bench::report() const {
  const ModelConfig& model = options_.model;
  const double step = median(times_);
  const double rate = options_.batch * model.seq * options_.accum / step;
  nlohmann::ordered_json out = {
      {"peer", name_of(options_.strategy)},
      {"torch", TORCH_VERSION},
      {"gpu", nullptr},
      {"preset", options_.preset},
      {"world", mesh_.numel()},
      {"params", tessera::train::num_parameters(model)},
      {"seq", model.seq},
      {"batch", options_.batch},
      {"accum", options_.accum},
      {"compile", false},
      {"ac", model.recompute == tessera::train::RecomputePolicy::block},
      {"offload", options_.offload},
      {"reshard", options_.reshard},
      {"precision", name_of(options_.precision)},
      {"step_s", rounded(step, 5)},
      {"step_min_s",
       rounded(*std::min_element(times_.begin(), times_.end()), 5)},
      {"cpu_issue_s", rounded(median(issue_times_), 5)},
      {"tokens_per_s_per_rank", rounded(rate, 1)},
      {"mfu", nullptr},
      {"peak_alloc_gib", nullptr},
      {"peak_reserved_gib", nullptr},
      {"device_used_gib", nullptr},
      {"loss_first", rounded(losses_.front().item<double>(), 4)},
      {"loss_last", rounded(losses_.back().item<double>(), 4)},
      {"losses", nlohmann::json::array()},
      // Ours alone.
      {"graph", graphed_ != nullptr},
      {"replicas", options_.replicas},
      {"float8", options_.float8},
      {"transport", name_of(mesh_.world().transport())},
      {"prefetch", nullptr},
      {"tight", options_.tight},
      {"gather_copy", options_.gather_copy},
      {"norm_in_backward", takes_norm_in_backward(options_)},
      {"step_in_backward", options_.stepping == Stepping::in_backward}};
  for (const auto& loss : losses_) {
    out["losses"].push_back(rounded(loss.item<double>(), 6));
  }
  if (options_.prefetch) out["prefetch"] = *options_.prefetch;
  if (!device_.is_cpu()) add_device_numbers(out, rate);
  return out;
}

}  // namespace

std::string run(const Options& options, const tessera::World& world) {
  Bench bench(options, world);
  bench.run();
  return bench.report().dump();
}

}  // namespace step_bench
