#include "tessera/train/reporter.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>

#include "tessera/base/error.h"
#include "tessera/train/metrics_file.h"
#include "tessera/train/model_presets.h"
#include "tessera/train/progress_line.h"
#include "tessera/train/run_curves.h"
#include "tessera/train/tensorboard_writer.h"

namespace tessera::train {
namespace {

using Clock = std::chrono::steady_clock;

/// A terminal that was closed is no reason to end a run.
void print(const std::string& line) {
  std::fprintf(stdout, "%s\n", line.c_str());
  std::fflush(stdout);
}

OpenFile prepare(const std::string& metrics,
                 std::optional<int64_t> goes_on_after) {
  if (!goes_on_after) return OpenFile::anew;
  drop_metrics_after(metrics, *goes_on_after);
  return OpenFile::append;
}

}  // namespace

struct Reporter::State {
  State(const TrainConfig& run_config, int num_ranks,
        std::optional<int64_t> goes_on_after)
      : config(run_config),
        world_size(num_ranks),
        folder(config.output.folder),
        metrics(folder + "/metrics.jsonl",
                prepare(folder + "/metrics.jsonl", goes_on_after)),
        has_curve(goes_on_after.value_or(0) > 0) {
    if (config.output.tensorboard) events.emplace(folder, goes_on_after);
  }

  void scalar(const char* tag, double value, int64_t step) {
    if (events) events->scalar(tag, value, step);
  }

  TrainConfig config;
  int world_size;
  std::string folder;
  MetricsWriter metrics;
  std::optional<TensorBoardWriter> events = {};
  ProgressLine progress = {};
  // Since the last progress line.
  int64_t tokens = 0;
  double seconds = 0;
  const Clock::time_point start = Clock::now();
  int64_t first_step = 0;  // of this process
  bool has_curve;          // some loss was finite
};

Reporter::Reporter(const TrainConfig& config, int world_size,
                   std::optional<int64_t> goes_on_after)
    : state_(std::make_unique<State>(config, world_size, goes_on_after)) {
  print(str(name_of(config.model.architecture), " of ",
            with_commas(num_parameters(config.model)), " parameters on ",
            world_size, world_size == 1 ? " rank" : " ranks", ", ",
            config.train.steps, " steps into '", config.output.folder, "'"));
}

Reporter::~Reporter() = default;

void Reporter::say(const std::string& line) { print(line); }

void Reporter::step(const StepReport& report) {
  State& s = *state_;
  if (s.first_step == 0) s.first_step = report.step;
  s.progress.add(report.loss, report.grad_norm);
  s.has_curve = s.has_curve || std::isfinite(report.loss);
  s.tokens += report.tokens;
  s.seconds += report.seconds;
  s.metrics.write({{"step", report.step},
                   {"loss", report.loss},
                   {"grad_norm", report.grad_norm},
                   {"lr", report.lr},
                   {"tokens", report.tokens},
                   {"seconds", report.seconds},
                   {"skipped", report.num_skipped},
                   {"memory_bytes", report.peak_bytes}});
  s.scalar("train/loss", report.loss, report.step);
  s.scalar("train/grad_norm", report.grad_norm, report.step);
  s.scalar("train/lr", report.lr, report.step);
  if (report.step % s.config.output.print_every == 0) print_progress(report);
}

void Reporter::print_progress(const StepReport& report) {
  State& s = *state_;
  const double rate = static_cast<double>(s.tokens) / s.seconds;
  const double elapsed =
      std::chrono::duration<double>(Clock::now() - s.start).count();
  const int64_t done = report.step - s.first_step + 1;
  StepProgress progress{
      .step = report.step,
      .num_steps = s.config.train.steps,
      .loss = report.loss,
      .grad_norm = report.grad_norm,
      .lr = report.lr,
      .tokens_per_second = rate,
      .memory_bytes = report.peak_bytes,
      .seconds_left = elapsed / static_cast<double>(done) *
                      static_cast<double>(s.config.train.steps - report.step)};
  if (s.config.output.peak_tflops > 0) {
    progress.mfu = rate * flops_per_token(s.config.model) /
                   (s.config.output.peak_tflops * 1e12 * s.world_size);
  }
  std::string line = s.progress.format(progress);
  if (report.num_skipped > 0) line += str(" | skipped ", report.num_skipped);
  print(line);
  s.scalar("train/tokens_per_second", rate, report.step);
  s.tokens = 0;
  s.seconds = 0;
}

void Reporter::held_out(int64_t step, double loss) {
  char text[64];
  std::snprintf(text, sizeof text, "step %5lld | held-out loss %.4f",
                static_cast<long long>(step), loss);
  print(text);
  state_->metrics.write({{"step", step}, {"held_out_loss", loss}});
  state_->scalar("held_out/loss", loss, step);
}

void Reporter::finish() {
  const std::string& folder = state_->folder;
  if (state_->has_curve) {
    write_curves({.runs = {folder},
                  .output = folder + "/loss.svg",
                  .plot = {.smooth = 0.9}});
  }
  print(str("weights and metrics are in '", folder, "'"));
}

}  // namespace tessera::train
