#include "examples/train_text/train.h"

#include <torch/torch.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <optional>

#include "examples/train_text/evaluate.h"
#include "examples/train_text/ranks.h"
#include "examples/train_text/window_order.h"
#include "tessera/optim/adamw.h"
#include "tessera/optim/clip_grad_norm.h"
#include "tessera/optim/lr_schedule.h"

namespace train_text {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

tessera::AdamW make_optimizer(Llama& model, const Options& options) {
  return tessera::AdamW(model->parameters(),
                        torch::optim::AdamWOptions(options.lr)
                            .betas({0.9, 0.95})
                            .weight_decay(options.weight_decay));
}

tessera::LrScheduleOptions schedule_options(const Options& options) {
  return {.decay = tessera::LrDecay::cosine,
          .total_steps = options.steps,
          .warmup_steps = std::llround(options.warmup * options.steps)};
}

/// The mean over this rank's tokens. Every rank has equally many in each step,
/// and sharding averages gradients over ranks, so the gradient is that of the
/// mean over all tokens of the step.
torch::Tensor mean_loss(Llama& model, const Batch& batch, at::Device device) {
  const auto logits = model(batch.input.to(device));
  return torch::nn::functional::cross_entropy(
      logits.flatten(0, 1).to(torch::kFloat),
      batch.target.to(device).flatten());
}

/// One run of `train`: what its steps share.
class Training {
 public:
  Training(Llama& model, const Text& text, const Text& held_out,
           const tessera::DeviceMesh& mesh, const Options& options)
      : model_(model),
        text_(text),
        held_out_(held_out),
        mesh_(mesh),
        options_(options),
        optimizer_(make_optimizer(model, options)),
        schedule_(optimizer_, schedule_options(options), {options.lr}),
        order_(text.num_windows(options.model.seq), options.seed) {}

  TrainResult run() {
    for (int64_t at = 0; at < options_.steps; at = position()) {
      schedule_.apply(at);
      step();
      ++result_.steps;
      if (result_.steps % options_.print_every == 0) {
        print();
      }
    }
    result_.seconds = seconds_since(start_) - paused_;
    return result_;
  }

 private:
  void step() {
    const int64_t ranks = mesh_.numel();
    const auto windows = order_.batch(result_.steps, options_.batch / ranks,
                                      mesh_.world().rank(), ranks);
    const auto batch = text_.batch(windows, options_.model.seq);
    const auto loss = mean_loss(model_, batch, mesh_.device());
    loss.backward();
    norm_ = tessera::clip_grad_norm_(model_->parameters(), options_.max_norm);
    optimizer_.step();
    optimizer_.zero_grad();
    const auto value = loss.detach().to(torch::kDouble);
    loss_sum_ = loss_sum_.defined() ? loss_sum_ + value : value;
  }

  /// Where the schedule is. By time, it is passed through at the pace that ends
  /// it in time; clocks differ, so the mean over ranks is taken.
  int64_t position() const {
    if (options_.minutes <= 0) {
      return result_.steps;
    }
    const auto elapsed =
        torch::full(1, seconds_since(start_) - paused_, torch::kDouble);
    const double mean =
        sum_over_ranks(elapsed, mesh_).item<double>() / mesh_.numel();
    return std::llround(mean / (60 * options_.minutes) * options_.steps);
  }

  void print() {
    const double loss = sum_over_ranks(loss_sum_, mesh_).item<double>() /
                        (options_.print_every * mesh_.numel());
    loss_sum_.reset();
    result_.losses.push_back(loss);
    const double tokens = static_cast<double>(
        options_.print_every * options_.batch * options_.model.seq);
    const double rate = tokens / (seconds_since(start_) - last_print_);
    const double learning_rate =
        optimizer_.param_groups()[0].options().get_lr();
    const auto held_out = evaluate();
    if (mesh_.world().rank() == 0) {
      std::printf(
          "step %5ld | loss %.4f | lr %.2e | grad norm %.3f | "
          "%.0f tokens/s",
          static_cast<long>(result_.steps), loss, learning_rate,
          norm_.item<double>(), rate);
      std::printf(held_out ? " | held-out %.4f\n" : "\n", held_out.value_or(0));
      std::fflush(stdout);
    }
    last_print_ = seconds_since(start_);
  }

  /// On a part of the held-out text; its time does not count as training.
  std::optional<double> evaluate() {
    if (result_.steps % options_.evaluate_every != 0) {
      return std::nullopt;
    }
    const double before = seconds_since(start_);
    const double loss =
        held_out_loss(model_, held_out_, mesh_,
                      {.seq = options_.model.seq, .max_windows = 160});
    paused_ += seconds_since(start_) - before;
    return loss;
  }

  Llama& model_;
  const Text& text_;
  const Text& held_out_;
  const tessera::DeviceMesh& mesh_;
  const Options& options_;
  tessera::AdamW optimizer_;
  tessera::LrSchedule schedule_;
  WindowOrder order_;
  TrainResult result_;
  torch::Tensor loss_sum_, norm_;
  const Clock::time_point start_ = Clock::now();
  double paused_ = 0;      // seconds spent on evaluation
  double last_print_ = 0;  // seconds after start_
};

}  // namespace

TrainResult train(Llama& model, const Text& text, const Text& held_out,
                  const tessera::DeviceMesh& mesh, const Options& options) {
  return Training(model, text, held_out, mesh, options).run();
}

}  // namespace train_text
