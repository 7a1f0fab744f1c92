// Training in small: against one process, and with the usual mistakes.
#include <torch/torch.h>

#include "cli/doctor/rank_checks.h"
#include "tessera/base/error.h"
#include "tessera/comm/communicator.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/shard/full_parameters.h"
#include "tessera/shard/fully_shard.h"

namespace tessera::cli::doctor {
namespace {

namespace nn = torch::nn;

constexpr int kSteps = 2;
constexpr int64_t kRowsPerRank = 4;
constexpr int64_t kWidth = 24;
constexpr double kRate = 0.1;
// Sums over ranks are in another order than over rows.
constexpr double kTolerance = 1e-5;

struct NetImpl : nn::Module {
  nn::Linear first{kWidth, 2 * kWidth};
  nn::Linear second{2 * kWidth, kWidth};
  NetImpl() {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& input) {
    return second(torch::tanh(first(input)));
  }
};
TORCH_MODULE(Net);

// Threads share the default generator, so weights come from no generator.
void set_weights(Net& net, double start) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : net->parameters()) {
    const auto numbers =
        torch::arange(parameter.numel(), torch::kFloat32) * 0.7 + start;
    parameter.copy_(torch::sin(numbers).view(parameter.sizes()) * 0.2);
  }
}

Net make_net(c10::Device device, double start = 0) {
  Net net;
  set_weights(net, start);
  net->to(device);
  return net;
}

at::Tensor rows(int64_t count, c10::Device device) {
  return torch::cos(torch::arange(count * kWidth, torch::kFloat32) * 0.3)
      .view({count, kWidth})
      .to(device);
}

at::Tensor loss_of(Net& net, const at::Tensor& input) {
  return (net->forward(input) - input.flip(1)).square().mean();
}

double train(Net& net, const at::Tensor& input) {
  torch::optim::SGD optimizer(net->parameters(), kRate);
  double loss = 0;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const at::Tensor value = loss_of(net, input);
    value.backward();
    optimizer.step();
    loss = value.item<double>();
  }
  return loss;
}

double worst_difference(Net& sharded, const Net& plain) {
  const FullParameters whole(*sharded, Write::discard);
  double worst = 0;
  const auto expected = plain->named_parameters();
  const std::vector<std::pair<const char*, at::Tensor>> members = {
      {"first.weight", sharded->first->weight},
      {"first.bias", sharded->first->bias},
      {"second.weight", sharded->second->weight},
      {"second.bias", sharded->second->bias}};
  for (const auto& [name, got] : members) {
    const at::Tensor difference = (got.detach() - expected[name]).abs().max();
    worst = std::max(worst, difference.item<double>());
  }
  return worst;
}

void shard(Net& net, const DeviceMesh& mesh) {
  fully_shard(*net->first, {.mesh = mesh});
  fully_shard(*net->second, {.mesh = mesh});
  fully_shard(*net, {.mesh = mesh});
}

// A mistake that the library must refuse, on every rank.
template <class Mistake>
Check rule(const World& world, const char* name, const char* advice,
           Mistake&& mistake) {
  std::string refusal;
  try {
    mistake();
  } catch (const std::exception& error) {
    refusal = error.what();
  }
  Check check{.name = name, .exit_code = kExitRules};
  const auto all = world.exchange("doctor/rule", refusal.empty() ? "n" : "y");
  for (const std::string& answer : all) {
    if (answer == "n") check.status = Status::failed;
  }
  const bool refused = check.status == Status::ok;
  check.text = refused ? str("a mistake is refused: ",
                             refusal.substr(0, refusal.find(". ") + 1))
                       : str("a mistake was not refused");
  check.remedy = refused ? "" : advice;
  return check;
}

void shard_from_the_top(const DeviceMesh& mesh) {
  Net net = make_net(mesh.device());
  fully_shard(*net, {.mesh = mesh});
  fully_shard(*net->first, {.mesh = mesh});
}

void step_on_lost_weights(const DeviceMesh& mesh) {
  Net net = make_net(mesh.device());
  shard(net, mesh);
  const torch::NoGradGuard no_grad;
  net->first->weight.mul_(2);
}

}  // namespace

Check check_step(const World& world) {
  return run_check(
      "sharded step", kExitStep,
      "Training on these ranks gives wrong numbers; send this report.",
      [&](Check& check) {
        const DeviceMesh mesh = init_device_mesh(world);
        const at::Tensor input =
            rows(kRowsPerRank * world.size(), world.device());
        Net plain = make_net(world.device());
        train(plain, input);
        Net sharded = make_net(world.device());
        shard(sharded, mesh);
        train(sharded,
              input.narrow(0, kRowsPerRank * world.rank(), kRowsPerRank));
        const double worst = worst_difference(sharded, plain);
        double on_all = 0;
        for (const std::string& text :
             world.exchange("doctor/step", std::to_string(worst * 1e9))) {
          on_all = std::max(on_all, std::stod(text) / 1e9);
        }
        check.text = str(kSteps, " steps on ", world.size(),
                         " ranks and on one differ by ", on_all,
                         " at most; allowed ", kTolerance);
        require<InvalidState>(on_all <= kTolerance, [&] { return check.text; });
      });
}

std::vector<Check> check_rules(const World& world) {
  const DeviceMesh mesh = init_device_mesh(world);
  std::vector<Check> checks;
  checks.push_back(rule(
      world, "ranks equal?",
      "Seed all ranks alike before the model is built, or load the same file.",
      [&] {
        Net net = make_net(world.device(), world.rank());
        shard(net, mesh);
      }));
  checks.push_back(
      rule(world, "sharded bottom-up?",
           "Call fully_shard on the blocks first, on the whole model last.",
           [&] { shard_from_the_top(mesh); }));
  checks.push_back(rule(world, "optimizer after?",
                        "Make the optimizer after the last fully_shard.", [&] {
                          Net net = make_net(world.device());
                          const torch::optim::SGD early(net->parameters(),
                                                        kRate);
                          shard(net, mesh);
                        }));
  checks.push_back(
      rule(world, "members written?",
           "Write to full parameters inside a FullParameters scope alone.",
           [&] { step_on_lost_weights(mesh); }));
  return checks;
}

}  // namespace tessera::cli::doctor
