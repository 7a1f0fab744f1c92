// Steps in one CUDA graph against the same steps without: losses and weights
// bit for bit, with LibTorch's deterministic algorithms. Prints a line for each
// case; exits with 1 when any differs. On one rank or more:
//
//   tessera run -n 2 -- device_graph
#include <ATen/Context.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/graph/graphed_step.h"
#include "tessera/optim/clip_grad_norm.h"
#include "tessera/shard/full_parameters.h"
#include "tessera/shard/fully_shard.h"
#include "tessera/train/build_model_meta.h"
#include "tests/device/graph/around.h"
#include "tests/device/graph/cases.h"
#include "tests/trainer/small_model.h"

namespace {

using namespace tessera;
using torch::Tensor;
using train::ModelConfig;

enum class How { eager, graph };

struct Outcome {
  std::vector<double> losses;
  std::vector<double> evaluations;
  std::vector<Tensor> weights;
  bool captured = false;
};

ModelConfig model_of(const Case& wanted) {
  return {.vocab = 512,
          .dim = 128,
          .layers = 3,
          .heads = 4,
          .kv_heads = 2,
          .ffn = 256,
          .seq = 64,
          .kernels = wanted.kernels,
          .recompute = wanted.recompute,
          .dropout = wanted.dropout};
}

class Training {
 public:
  Training(const Case& wanted, const DeviceMesh& mesh, How how)
      : case_(wanted),
        config_(model_of(wanted)),
        mesh_(mesh),
        model_(make_model()),
        optimizer_(model_->parameters(),
                   torch::optim::AdamWOptions(1e-3).weight_decay(0.1)) {
    torch::manual_seed(5 + mesh.world().rank());
    if (wanted.step_in_backward) {
      step_in_backward(*model_, [this](const TensorVector& shards) {
        optimizer_.step_only(shards);
      });
    }
    if (wanted.norm_in_backward) {
      set_norm_in_backward(*model_, NormInBackward::on);
    }
    if (how == How::graph) {
      graphed_ = std::make_unique<GraphedStep>(
          *model_, optimizer_, mesh,
          [this](const TensorVector& rows) { return body(rows); },
          GraphedStepOptions{.warmup = 2,
                             .on_failure = wanted.read_a_value
                                               ? OnCaptureFailure::run_eagerly
                                               : OnCaptureFailure::raise});
    }
  }

  Outcome run() {
    Outcome outcome;
    for (int step = 0; step < case_.steps; ++step) {
      if (step == case_.load_before) load();
      for (auto& group : optimizer_.param_groups()) {
        group.options().set_lr(1e-3 / (1 + step));
      }
      const TensorVector rows = batches(step);
      const Tensor loss = graphed_ ? (*graphed_)(rows)[0] : body_there(rows);
      outcome.losses.push_back(loss.item<double>());
      if (case_.evaluate_every > 0 && (step + 1) % case_.evaluate_every == 0) {
        outcome.evaluations.push_back(evaluate());
      }
    }
    outcome.captured = graphed_ && graphed_->captured();
    const FullParameters whole(*model_, Write::discard);
    for (const Tensor& weight : model_->parameters()) {
      outcome.weights.push_back(weight.detach().cpu().clone());
    }
    return outcome;
  }

 private:
  train::LanguageModelPtr make_model() {
    auto model = train::build_model_meta(config_);
    FullyShardOptions how{.mesh = mesh_,
                          .reshard_after_forward = case_.reshard,
                          .gather_copy = case_.gather_copy,
                          .prefetch = case_.prefetch,
                          .backward_overlap = case_.backward_overlap};
    if (case_.bfloat16) {
      how.mp_policy = {.param_dtype = torch::kBFloat16,
                       .reduce_dtype = torch::kFloat32};
    }
    for (auto* unit : model->units()) fully_shard(*unit, how);
    fully_shard(*model, how);
    train::draw_weights(*model,
                        {.seed = 7, .std = 0.05, .layers = config_.layers});
    return model;
  }

  [[nodiscard]] TensorVector batches(int step) const {
    TensorVector rows;
    for (int micro = 0; micro < case_.micro_batches; ++micro) {
      const uint64_t seed =
          1000 * mesh_.world().rank() + step * case_.micro_batches + micro;
      const auto batch = train::test::random_batch(config_, case_.rows, seed);
      rows.push_back(
          torch::cat({batch.input, batch.target.narrow(1, -1, 1)}, 1));
    }
    return rows;
  }

  Tensor body_there(const TensorVector& rows) {
    TensorVector there;
    for (const Tensor& each : rows) there.push_back(each.to(mesh_.device()));
    return body(there)[0];
  }

  Tensor loss_of(const Tensor& rows) {
    const Tensor targets = rows.narrow(1, 1, config_.seq);
    return model_->sum_of_losses(rows.narrow(1, 0, config_.seq), targets) /
           (targets.numel() * case_.micro_batches);
  }

  TensorVector body(const TensorVector& rows) {
    Tensor sum = torch::zeros({}, mesh_.device());
    for (size_t micro = 0; micro < rows.size(); ++micro) {
      set_requires_gradient_sync(
          *model_, micro + 1 == rows.size() ? Sync::on : Sync::off);
      const Tensor loss = loss_of(rows[micro]);
      if (case_.read_a_value && loss.item<double>() < 0) return {loss};
      loss.backward();
      sum += loss.detach();
    }
    update();
    return {sum};
  }

  void update() {
    if (case_.clip_in_step) {
      optimizer_.step_clipped(get_total_norm(model_->parameters()),
                              case_.max_norm);
    } else {
      if (case_.max_norm > 0) {
        clip_grad_norm_(model_->parameters(), case_.max_norm);
      }
      optimizer_.step();
    }
    optimizer_.zero_grad();
  }

  double evaluate() {
    const torch::NoGradGuard no_grad;
    model_->eval();
    const double loss =
        loss_of(batches(99)[0].to(mesh_.device())).item<double>();
    model_->train();
    return loss;
  }

  /// What a load does: other weights, other moments, another count of steps.
  void load() {
    {
      const FullParameters whole(*model_, Write::keep);
      const torch::NoGradGuard no_grad;
      for (Tensor& weight : model_->parameters()) weight.mul_(0.5);
    }
    for (const Tensor& shard : model_->parameters()) {
      ParameterState state = optimizer_.state_of(shard);
      state.exp_avg = state.exp_avg.clone().mul_(2);
      state.step.fill_(7);
      optimizer_.set_state_of(shard, state);
    }
  }

  const Case case_;
  const ModelConfig config_;
  const DeviceMesh mesh_;
  train::LanguageModelPtr model_;
  AdamW optimizer_;
  std::unique_ptr<GraphedStep> graphed_;
};

bool same(const Outcome& got, const Outcome& want) {
  if (got.losses != want.losses || got.evaluations != want.evaluations) {
    return false;
  }
  for (size_t i = 0; i < want.weights.size(); ++i) {
    if (!torch::equal(got.weights[i], want.weights[i])) return false;
  }
  return true;
}

std::string list(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) text += str(" ", value);
  return text;
}

/// The same numbers, eager or a graph, as without gathers ahead and such steps.
bool check(const Case& wanted, const DeviceMesh& mesh) {
  Case in_turn = wanted;
  in_turn.prefetch = 0;
  in_turn.step_in_backward = false;
  in_turn.gather_copy = GatherCopy::none;
  in_turn.clip_in_step = false;
  in_turn.norm_in_backward = false;
  const Outcome want = Training(in_turn, mesh, How::eager).run();
  const Outcome eager = Training(wanted, mesh, How::eager).run();
  const Outcome graph = Training(wanted, mesh, How::graph).run();
  const bool good = same(eager, want) && same(graph, want) && graph.captured;
  if (mesh.world().rank() == 0) {
    std::printf("%s %s%s\n", good ? "ok" : "FAILED", wanted.name.c_str(),
                graph.captured ? "" : ", not captured");
    if (!good) {
      std::printf("  graph:%s\n  eager:%s\n  in turn:%s\n",
                  list(graph.losses).c_str(), list(eager.losses).c_str(),
                  list(want.losses).c_str());
    }
  }
  return good;
}

/// A step that reads a value cannot be captured; it says where, and the model
/// goes on without a graph.
bool check_host_wait(const DeviceMesh& mesh) {
  const Case wanted{
      .name = "a step that waits", .dropout = 0.2, .read_a_value = true};
  const Outcome eager = Training(wanted, mesh, How::eager).run();
  const Outcome graph = Training(wanted, mesh, How::graph).run();
  const bool good = same(graph, eager) && !graph.captured;
  std::printf("%s %s runs without a graph on request\n", good ? "ok" : "FAILED",
              wanted.name.c_str());
  return good;
}

bool check_host_wait_is_named(const DeviceMesh& mesh) {
  torch::nn::Linear model(4, 4);
  model->to(mesh.device());
  AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  GraphedStep step(*model, optimizer, mesh, [&](const TensorVector& in) {
    const Tensor loss = model->forward(in[0]).sum();
    if (loss.item<float>() > 1e9) return TensorVector{};
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    return TensorVector{loss.detach()};
  });
  std::string message;
  try {
    for (int i = 0; i < 5; ++i) (void)step({torch::ones({2, 4})});
  } catch (const Unsupported& error) {
    message = error.what();
  }
  const bool good =
      message.find("aten::_local_scalar_dense") != std::string::npos &&
      message.find("aten::item") != std::string::npos;
  std::printf("%s a step that waits is named: %s\n", good ? "ok" : "FAILED",
              message.c_str());
  return good;
}

/// Rank 1 stays away from a replay: the end names rank 0's unit and operator.
int hang(const World& world) {
  const Case wanted{.name = "hang"};
  Training training(wanted, init_device_mesh(world), How::graph);
  (void)training.run();
  if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::minutes(2));
  (void)training.run();
  std::printf("FAILED: the replays of rank %d ended\n", world.rank());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF,
               0);  // what was printed survives a crash
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  if (argc > 1 && std::string(argv[1]) == "hang") {
    return hang(init_distributed({.timeout = std::chrono::seconds(5)}));
  }
  const World world = init_distributed();
  const DeviceMesh mesh = init_device_mesh(world);
  int failures = 0;
  const auto count = [&](const std::string& name,
                         const std::function<bool()>& one) {
    try {
      failures += one() ? 0 : 1;
    } catch (const std::exception& error) {
      ++failures;
      std::printf("FAILED %s: %s\n", name.c_str(), error.what());
    }
  };
  for (const Case& wanted : cases()) {
    count(wanted.name, [&] { return check(wanted, mesh); });
  }
  count("host wait", [&] { return check_host_wait(mesh); });
  count("host wait named", [&] { return check_host_wait_is_named(mesh); });
  count("own graph", [&] { return check_own_graph(mesh); });
  count("drop at work", [&] { return check_drop_at_work(mesh); });
  std::printf("rank %d: %d failures\n", world.rank(), failures);
  return failures == 0 ? 0 : 1;
}
