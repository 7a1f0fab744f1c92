#include "tessera/train/train.h"

#include <ATen/Context.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "tessera/mesh/device_mesh.h"
#include "tessera/optim/lr_schedule.h"
#include "tessera/train/agree_on_failure.h"
#include "tessera/train/build_model_meta.h"
#include "tessera/train/build_optimizer.h"
#include "tessera/train/evaluate.h"
#include "tessera/train/peak_memory.h"
#include "tessera/train/reporter.h"
#include "tessera/train/run_folder.h"
#include "tessera/train/sampler.h"
#include "tessera/train/step_shape.h"
#include "tessera/train/train_data.h"
#include "tessera/train/train_step.h"

namespace tessera::train {
namespace {

using Clock = std::chrono::steady_clock;

/// Sets LibTorch's choice of algorithms, and puts it back.
class DeterministicScope {
 public:
  explicit DeterministicScope(bool on)
      : before_(at::globalContext().deterministicAlgorithms()) {
    if (on) at::globalContext().setDeterministicAlgorithms(true, false);
  }
  ~DeterministicScope() {
    at::globalContext().setDeterministicAlgorithms(before_, false);
  }
  DeterministicScope(const DeterministicScope&) = delete;
  DeterministicScope& operator=(const DeterministicScope&) = delete;

 private:
  bool before_;
};

LanguageModelPtr make_model(const TrainConfig& config, const DeviceMesh& mesh) {
  auto model = build_model_meta(config.model);
  shard_model(*model, config.shard, mesh);
  draw_weights(*model, {.seed = config.train.seed,
                        .std = config.init_std,
                        .layers = config.model.layers});
  return model;
}

SamplerOptions sampler_options(const TrainConfig& config, const TrainData& data,
                               const World& world) {
  return {.num_windows = data.train().num_windows(),
          .batch = config.train.batch,
          .seed = config.train.seed,
          .rank = world.rank(),
          .world_size = world.size()};
}

/// One run of `train`: what its steps share.
class Training {
 public:
  Training(const TrainConfig& config, const World& world,
           const TrainCalls& calls, const StepShape& shape,
           const TrainData& data, Reporter* reporter)
      : config_(config),
        calls_(calls),
        shape_(shape),
        data_(data),
        reporter_(reporter),
        mesh_(init_device_mesh(
            world, {.shape = {world.size()}, .axes = {"dp_shard"}})),
        model_(make_model(config, mesh_)),
        optimizer_(build_optimizer(*model_, config.optimizer)),
        schedule_(*optimizer_, config.schedule, {config.optimizer.lr}),
        sampler_(sampler_options(config, data, world)) {}

  TrainOutcome run() {
    resume();
    Ending ending = Ending::finished;
    while (ending == Ending::finished && outcome_.steps < config_.train.steps) {
      ending = step();
      if (due(config_.evaluation.every)) {
        measure(config_.evaluation.max_windows);
      }
    }
    outcome_.ending = ending;
    finish();
    return outcome_;
  }

 private:
  void resume() {
    if (!calls_.checkpoint.load) return;
    TrainState state{*model_, *optimizer_};
    calls_.checkpoint.load(state);
    outcome_.steps = state.step;
    sampler_.seek(state.step * shape_.windows());
  }

  Ending step() {
    const auto start = Clock::now();
    schedule_.apply(outcome_.steps);
    const StepResult result =
        train_step(*model_, *optimizer_, next_batches(), mesh_,
                   {.max_norm = config_.train.max_norm, .wish = wish()});
    ++outcome_.steps;
    if (!result.updated) ++outcome_.num_skipped;
    report(result, std::chrono::duration<double>(Clock::now() - start).count());
    if (!result.updated && config_.train.on_nonfinite == OnNonFinite::stop) {
      return Ending::nonfinite;
    }
    return result.wish == Wish::stop ? Ending::stopped : Ending::finished;
  }

  std::vector<Batch> next_batches() {
    std::vector<Batch> batches;
    for (int64_t i = 0; i < shape_.micro_batches; ++i) {
      batches.push_back(data_.train().batch(sampler_.next()));
    }
    return batches;
  }

  [[nodiscard]] Wish wish() const {
    return calls_.stop_requested && calls_.stop_requested() ? Wish::stop
                                                            : Wish::go_on;
  }

  [[nodiscard]] bool due(int64_t every) const {
    return every > 0 && outcome_.steps % every == 0 &&
           outcome_.steps < config_.train.steps;
  }

  void report(const StepResult& result, double seconds) {
    if (!reporter_) return;
    reporter_->step({.step = outcome_.steps,
                     .loss = result.loss,
                     .grad_norm = result.grad_norm,
                     .lr = schedule_.lr(outcome_.steps - 1),
                     .tokens = result.tokens,
                     .seconds = seconds,
                     .num_skipped = outcome_.num_skipped,
                     .peak_bytes = peak_memory(mesh_.device())});
  }

  /// The held-out loss, on so many windows (0: all); none without such a text.
  std::optional<double> measure(int64_t max_windows) {
    if (data_.held_out() == nullptr) return std::nullopt;
    const double loss =
        evaluate(*model_, *data_.held_out(), mesh_,
                 {.batch = config_.train.batch, .max_windows = max_windows})
            .loss;
    if (reporter_) reporter_->held_out(outcome_.steps, loss);
    return loss;
  }

  /// Leaves what there is. A run that was told to end does not take the time to
  /// measure.
  void finish() {
    if (outcome_.ending == Ending::finished) {
      outcome_.held_out_loss = measure(0);
    }
    if (calls_.checkpoint.save) {
      calls_.checkpoint.save({*model_, *optimizer_, outcome_.steps});
    }
    save_weights(*model_, mesh_, config_.output.folder);
    if (reporter_) reporter_->finish();
  }

  const TrainConfig& config_;
  const TrainCalls& calls_;
  const StepShape shape_;
  const TrainData& data_;
  Reporter* const reporter_;  // on rank 0
  const DeviceMesh mesh_;
  const LanguageModelPtr model_;
  const std::unique_ptr<torch::optim::Optimizer> optimizer_;
  LrSchedule schedule_;
  Sampler sampler_;
  TrainOutcome outcome_;
};

}  // namespace

TrainOutcome train(const TrainConfig& config, const World& world,
                   const TrainCalls& calls) {
  std::unique_ptr<TrainData> data;
  std::unique_ptr<Reporter> reporter;
  StepShape shape;
  agree_on_failure(world, [&] {
    shape = step_shape(config, world.size());
    data = std::make_unique<TrainData>(
        config, world.rank() == 0 ? Checksum::compared : Checksum::trusted);
    if (world.rank() == 0) {
      make_run_folder(config, data->tokenizer());
      reporter = std::make_unique<Reporter>(config, world.size());
    }
  });
  const DeterministicScope deterministic(config.train.deterministic);
  return Training(config, world, calls, shape, *data, reporter.get()).run();
}

}  // namespace tessera::train
