// The same start, batches and options as PyTorch FSDP2's runs give its losses,
// gradient norms and weights.
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/optim/adamw.h"
#include "tessera/optim/clip_grad_norm.h"
#include "tessera/shard/full_parameters.h"
#include "tessera/shard/fully_shard.h"
#include "tests/fsdp2_fixtures/models.h"

namespace fsdp2_fixtures {
namespace {

using tessera::World;
using namespace std::chrono_literals;

enum class Optimizer { stock, fused };

struct Case {
  std::string model;
  std::string optimizer;  // the fixture's name for it
  std::string mode;       // "w2", "w3_bf16", ...
  Optimizer kind = Optimizer::stock;

  [[nodiscard]] int world_size() const { return mode[1] - '0'; }
  [[nodiscard]] bool bf16() const { return mode.ends_with("bf16"); }
  [[nodiscard]] std::string name() const {
    return model + "_" + optimizer + "_" + mode +
           (kind == Optimizer::fused ? "_fused" : "");
  }
};

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const Case& test, const nlohmann::json& options,
    const std::vector<Tensor>& parameters) {
  if (test.optimizer == "sgd") {
    return std::make_unique<torch::optim::SGD>(
        parameters, torch::optim::SGDOptions(options["lr"])
                        .momentum(options["momentum"])
                        .weight_decay(options["weight_decay"]));
  }
  const auto adamw =
      torch::optim::AdamWOptions(options["lr"])
          .betas({options["betas"][0], options["betas"][1]})
          .eps(options["eps"])
          .weight_decay(options["weight_decay"]);
  if (test.kind == Optimizer::fused) {
    return std::make_unique<tessera::AdamW>(parameters, adamw);
  }
  return std::make_unique<torch::optim::AdamW>(parameters, adamw);
}

double mean_over_ranks(const World& world, int64_t step, double value) {
  double sum = 0;
  std::ostringstream text;
  text.precision(17);
  text << value;
  for (const auto& one :
       world.exchange(tessera::str("loss ", step), text.str())) {
    sum += std::stod(one);
  }
  return sum / world.size();
}

void shard(Model& model, const Fixture& fixture, const Case& test,
           const World& world) {
  tessera::FullyShardOptions options{
      .mesh = tessera::init_device_mesh(world),
      .debug = tessera::Debug::poison_memory};
  if (test.bf16()) {
    options.mp_policy = {.param_dtype = torch::kBFloat16,
                         .reduce_dtype = torch::kFloat};
  }
  for (const auto& name : fixture.json()["wrap"]) {
    tessera::fully_shard(submodule(model, name), options);
  }
}

void run(const Case& test, const World& world) {
  const Fixture fixture(TESSERA_FIXTURES, test.model);
  const auto& golden = fixture.run(test.optimizer, test.mode);
  const auto& options = fixture.json()["optimizers"][test.optimizer];
  const Tolerance near = tolerance(TESSERA_FIXTURES, test.bf16() ? "bf16" : "fp32");
  const auto model = make_model(fixture);
  shard(*model, fixture, test, world);
  const auto optimizer = make_optimizer(test, options, model->parameters());
  const double max_norm =
      options["max_norm"].is_null() ? INFINITY : double(options["max_norm"]);
  const int64_t rows = 6 / world.size();
  for (int64_t step = 0; step < fixture.num_steps(); ++step) {
    SCOPED_TRACE(tessera::str(test.name(), " step ", step));
    const Tensor loss =
        model->loss(fixture, step, world.rank() * rows, rows);
    loss.backward();
    const double mean = mean_over_ranks(world, step, loss.item<double>());
    const double norm =
        tessera::clip_grad_norm_(model->parameters(), max_norm).item<double>();
    const double golden_loss = golden["losses"][step];
    const double golden_norm = golden["grad_norms"][step];
    EXPECT_NEAR(mean, golden_loss, near.losses_rel * golden_loss);
    EXPECT_NEAR(norm, golden_norm, near.grad_norms_rel * golden_norm);
    optimizer->step();
    optimizer->zero_grad();
  }
  tessera::FullParameters whole(*model, tessera::Write::discard);
  for (const auto& item : model->named_parameters()) {
    EXPECT_LE(distance(item.value().detach(), golden["final"][item.key()]),
              near.final_abs)
        << test.name() << " " << item.key();
  }
}

class Fsdp2Fixtures : public testing::TestWithParam<Case> {};

TEST_P(Fsdp2Fixtures, LossesNormsAndWeightsAreThoseOfFsdp2) {
  at::set_num_threads(1);
  tessera::run_ranks(
      GetParam().world_size(),
      [](const World& world) { run(GetParam(), world); }, 30s);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* model : {"mlp", "tied_lm", "llama"}) {
    for (const char* mode : {"w2", "w3", "w2_bf16", "w3_bf16"}) {
      all.push_back({model, "sgd", mode});
      all.push_back({model, "adamw", mode});
      all.push_back({model, "adamw", mode, Optimizer::fused});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, Fsdp2Fixtures, testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name(); });

}  // namespace
}  // namespace fsdp2_fixtures
