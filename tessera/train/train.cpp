#include "tessera/train/train.h"

#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tessera/mesh/device_mesh.h"
#include "tessera/optim/lr_schedule.h"
#include "tessera/shard/unit_settings.h"
#include "tessera/train/agree_on_failure.h"
#include "tessera/train/build_model_meta.h"
#include "tessera/train/build_optimizer.h"
#include "tessera/train/checkpoint_folder.h"
#include "tessera/train/checkpoint_load.h"
#include "tessera/train/checkpoint_save.h"
#include "tessera/train/deterministic_scope.h"
#include "tessera/train/evaluate.h"
#include "tessera/train/graphed_train_step.h"
#include "tessera/train/peak_memory.h"
#include "tessera/train/random_state.h"
#include "tessera/train/reporter.h"
#include "tessera/train/run_folder.h"
#include "tessera/train/sampler.h"
#include "tessera/train/step_profiler.h"
#include "tessera/train/step_shape.h"
#include "tessera/train/train_data.h"
#include "tessera/train/train_step.h"

namespace tessera::train {
namespace {

using Clock = std::chrono::steady_clock;

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

/// What is there before a run begins.
struct Start {
  StepShape shape;
  std::unique_ptr<TrainData> data;
  std::optional<ResumePoint> point;    // none: anew
  std::unique_ptr<Reporter> reporter;  // on rank 0
};

/// One run of `train`: what its steps share.
class Training {
 public:
  Training(const TrainConfig& config, const World& world,
           const TrainCalls& calls, const Start& start)
      : config_(config),
        calls_(calls),
        start_(start),
        data_(*start.data),
        reporter_(start.reporter.get()),
        shard_mesh_(shard_mesh(config.shard, world)),
        model_(make_model(config, shard_mesh_)),
        mesh_(shard_mesh_.flatten("all")),
        optimizer_(build_optimizer(*model_, config.optimizer)),
        graphed_(make_graphed_train_step(config, *model_, *optimizer_, mesh_)),
        profiler_(config, world),
        schedule_(*optimizer_, config.schedule, {config.optimizer.lr}),
        sampler_(sampler_options(config, data_, world)),
        saver_(config, world,
               {.text = data_.text_id(), .storage = calls.storage}),
        state_{*model_, *optimizer_} {
    if (config.train.step_in_backward) {
      let_step_in_backward(*model_, *optimizer_);
    } else {
      set_norm_in_backward(*model_, NormInBackward::on);
    }
  }

  TrainOutcome run() {
    checkpoint_load();
    const bool complete = counters().step >= config_.train.steps;
    Ending ending = Ending::finished;
    while (ending == Ending::finished &&
           counters().step < config_.train.steps) {
      ending = step();
      if (ending == Ending::finished) between_steps();
    }
    finish(ending, complete);
    return outcome(ending);
  }

 private:
  RunCounters& counters() { return state_.counters; }

  void checkpoint_load() {
    const World& world = mesh_.world();
    if (!start_.point) {
      seed_random(config_.train.seed, 0, world.rank());
      return;
    }
    train::checkpoint_load(*start_.point, state_, config_.train.seed, world);
    if (start_.point->text != data_.text_id()) counters().samples = 0;
    sampler_.seek(counters().samples);
  }

  void checkpoint_save(Keep keep) {
    if (config_.checkpoint.enabled) saver_.save(state_, keep);
  }

  Ending step() {
    const auto start = Clock::now();
    schedule_.apply(counters().step);
    profiler_.begin(counters().step + 1);
    StepOptions options = step_options(config_);
    options.wish = wish();
    options.save = saver_.health();
    options.before_change = [this] { saver_.before_change(); };
    const StepResult result =
        graphed_
            ? (*graphed_)(next_batches(), options)
            : train_step(*model_, *optimizer_, next_batches(), mesh_, options);
    ++counters().step;
    profiler_.end(counters().step);
    counters().samples = sampler_.samples_taken();
    counters().tokens += result.tokens;
    if (!result.updated) ++counters().num_skipped;
    report(result, std::chrono::duration<double>(Clock::now() - start).count());
    if (result.save == SaveHealth::failed) saver_.finish();  // raises
    if (!result.updated && config_.train.on_nonfinite == OnNonFinite::stop) {
      return Ending::nonfinite;
    }
    return result.wish == Wish::stop ? Ending::stopped : Ending::finished;
  }

  std::vector<Batch> next_batches() {
    std::vector<Batch> batches;
    for (int64_t i = 0; i < start_.shape.micro_batches; ++i) {
      batches.push_back(data_.train().batch(sampler_.next()));
    }
    return batches;
  }

  [[nodiscard]] Wish wish() const {
    return calls_.stop_requested && calls_.stop_requested() ? Wish::stop
                                                            : Wish::go_on;
  }

  void between_steps() {
    const bool better = due(config_.evaluation.every) &&
                        is_best(measure(config_.evaluation.max_windows));
    if (better || due(config_.checkpoint.every)) {
      checkpoint_save(better ? Keep::best : Keep::latest);
    }
  }

  bool due(int64_t every) {
    return every > 0 && counters().step % every == 0 &&
           counters().step < config_.train.steps;
  }

  void report(const StepResult& result, double seconds) {
    if (!reporter_) return;
    reporter_->step({.step = counters().step,
                     .loss = result.loss,
                     .grad_norm = result.grad_norm,
                     .lr = schedule_.lr(counters().step - 1),
                     .tokens = result.tokens,
                     .seconds = seconds,
                     .num_skipped = counters().num_skipped,
                     .peak_bytes = peak_memory(mesh_.device())});
  }

  /// The held-out loss, on so many windows (0: all); none without such a text.
  std::optional<double> held_out_loss(int64_t max_windows) {
    if (data_.held_out() == nullptr) return std::nullopt;
    return evaluate(*model_, *data_.held_out(), mesh_,
                    {.batch = config_.train.batch, .max_windows = max_windows})
        .loss;
  }

  std::optional<double> measure(int64_t max_windows) {
    const auto loss = held_out_loss(max_windows);
    if (loss && reporter_) reporter_->held_out(counters().step, *loss);
    return loss;
  }

  /// At the end, on the windows of the losses before.
  std::optional<double> comparable_loss() {
    const int64_t windows = config_.evaluation.max_windows;
    const bool wanted =
        config_.checkpoint.enabled && config_.checkpoint.keep_best;
    if (windows == 0 || !wanted) return held_out_loss_;
    return held_out_loss(windows);
  }

  /// Whether it is the run's lowest, and is to be kept.
  bool is_best(std::optional<double> loss) {
    auto& best = counters().best_held_out;
    if (!loss || !(*loss < best.value_or(INFINITY))) return false;
    best = loss;
    return config_.checkpoint.keep_best;
  }

  /// Leaves what there is. A run that was told to end does not take the time to
  /// measure; one that was complete when it was resumed was measured then.
  void finish(Ending ending, bool complete) {
    Keep keep = Keep::latest;
    if (ending == Ending::finished && !complete) {
      held_out_loss_ = measure(0);
      if (is_best(comparable_loss())) keep = Keep::best;
    }
    if (!complete) checkpoint_save(keep);
    saver_.finish();
    profiler_.finish();
    save_weights(*model_, mesh_, config_.output.folder);
    if (reporter_) reporter_->finish();
  }

  TrainOutcome outcome(Ending ending) {
    return {.ending = ending,
            .steps = counters().step,
            .num_skipped = counters().num_skipped,
            .held_out_loss = held_out_loss_,
            .checkpoint = saver_.last()};
  }

  const TrainConfig& config_;
  const TrainCalls& calls_;
  const Start& start_;
  const TrainData& data_;
  Reporter* const reporter_;
  const DeviceMesh shard_mesh_;
  const LanguageModelPtr model_;
  const DeviceMesh mesh_;  // the same ranks along one axis
  const std::unique_ptr<torch::optim::Optimizer> optimizer_;
  const std::unique_ptr<GraphedTrainStep> graphed_;  // null: train_step
  StepProfiler profiler_;
  LrSchedule schedule_;
  Sampler sampler_;
  CheckpointSaver saver_;
  TrainState state_;
  std::optional<double> held_out_loss_;
};

bool is_below(const std::string& path, const std::string& folder) {
  return std::filesystem::weakly_canonical(path).parent_path() ==
         std::filesystem::weakly_canonical(folder);
}

/// After which step of this folder's own run it goes on, if it does.
std::optional<int64_t> goes_on_after(const std::optional<ResumePoint>& point,
                                     const TrainConfig& config) {
  const bool own =
      point && is_below(point->path, checkpoint_folder(config.output.folder));
  return own ? std::optional(point->counters.step) : std::nullopt;
}

void say_where_it_begins(Reporter& reporter, const ResumePoint& point,
                         const std::vector<std::string>& notes,
                         const TrainConfig& config) {
  std::string line =
      str("goes on from '", point.path, "', after step ", point.counters.step);
  if (point.counters.step >= config.train.steps) {
    line += ": all steps are done";
  }
  for (const std::string& note : notes) line += "; " + note;
  reporter.say(line);
}

/// On rank 0: the run folder, and what people are told first.
std::unique_ptr<Reporter> open_folder(const TrainConfig& config,
                                      const TrainCalls& calls, int world_size,
                                      const Start& start,
                                      const std::vector<std::string>& notes) {
  const auto own_step = goes_on_after(start.point, config);
  make_run_folder(config, start.data->tokenizer());
  const std::string aside =
      set_aside_checkpoints(config.output.folder, own_step.value_or(-1));
  auto reporter = std::make_unique<Reporter>(config, world_size, own_step);
  if (start.point) {
    say_where_it_begins(*reporter, *start.point, notes, config);
  } else if (calls.resume != "never") {
    reporter->say(str("no checkpoint in '",
                      checkpoint_folder(config.output.folder),
                      "'; begins anew"));
  }
  if (!aside.empty()) {
    reporter->say(
        str("checkpoints that are not of this run are in '", aside, "' now"));
  }
  return reporter;
}

Start begin(const TrainConfig& config, const World& world,
            const TrainCalls& calls) {
  Start start;
  agree_on_failure(world, [&] {
    check_graph(config, world.device());
    (void)shard_shape(config.shard, world.size());
    start.shape = step_shape(config, world.size());
    start.data = std::make_unique<TrainData>(
        config, world.rank() == 0 ? Checksum::compared : Checksum::trusted);
  });
  start.point = find_checkpoint(calls.resume, config, world);
  agree_on_failure(world, [&] {
    std::vector<std::string> notes;
    if (start.point) {
      notes = check_checkpoint(*start.point, config, start.data->text_id(),
                               world.size());
    }
    if (world.rank() == 0) {
      start.reporter = open_folder(config, calls, world.size(), start, notes);
    }
  });
  return start;
}

}  // namespace

TrainOutcome train(const TrainConfig& config, const World& world,
                   const TrainCalls& calls) {
  const Start start = begin(config, world, calls);
  const DeterministicScope deterministic(config.train.deterministic);
  return Training(config, world, calls, start).run();
}

}  // namespace tessera::train
