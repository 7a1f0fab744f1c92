// Our side of the comparison with PyTorch FSDP2: one rank that trains every
// case of a folder (live_cases.py says what a case is).
//
//   tessera run -n 2 -- fsdp2_live FOLDER
//
// Rank 0 writes FOLDER/tessera.json.
#include <cstdio>
#include <fstream>

#include "tessera/tessera.h"
#include "tests/fsdp2_fixtures/models.h"

namespace {

using fsdp2_fixtures::Fixture;
using fsdp2_fixtures::Model;
using Json = nlohmann::json;
using torch::Tensor;

std::optional<c10::ScalarType> dtype_of(const Json& name) {
  if (name.is_null()) return std::nullopt;
  return name == "bf16" ? torch::kBFloat16 : torch::kFloat;
}

tessera::Reshard reshard_of(const Json& reshard) {
  if (reshard.is_null()) return tessera::Reshard::automatic;
  return reshard ? tessera::Reshard::always : tessera::Reshard::never;
}

void freeze(Model& model, const Json& prefixes) {
  for (const auto& item : model.named_parameters()) {
    for (const std::string prefix : prefixes) {
      if (item.key().starts_with(prefix)) item.value().set_requires_grad(false);
    }
  }
}

void shard(Model& model, const Fixture& fixture,
           const tessera::DeviceMesh& mesh) {
  const Json& job = fixture.json()["job"];
  const tessera::FullyShardOptions options{
      .mesh = mesh,
      .reshard_after_forward = reshard_of(job["reshard"]),
      .mp_policy = {.param_dtype = dtype_of(job["param_dtype"]),
                    .reduce_dtype = dtype_of(job["reduce_dtype"])}};
  for (const auto& name : fixture.json()["wrap"]) {
    tessera::fully_shard(fsdp2_fixtures::submodule(model, name), options);
  }
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const Json& options, const std::vector<Tensor>& parameters) {
  if (options["name"] == "sgd") {
    return std::make_unique<torch::optim::SGD>(
        parameters, torch::optim::SGDOptions(options["lr"])
                        .momentum(options["momentum"])
                        .weight_decay(options["weight_decay"]));
  }
  return std::make_unique<tessera::AdamW>(
      parameters, torch::optim::AdamWOptions(options["lr"])
                      .betas({options["betas"][0], options["betas"][1]})
                      .eps(options["eps"])
                      .weight_decay(options["weight_decay"]));
}

/// Backward over this rank's micro-batches; the mean loss of all ranks.
double one_step(Model& model, const Fixture& fixture, int64_t step,
                tessera::Communicator& ranks) {
  const Json& job = fixture.json()["job"];
  const int64_t count = job["micro_batches"];
  const int64_t rows = job["rows"];
  Tensor total = torch::zeros({1});
  for (int64_t micro = 0; micro < count; ++micro) {
    const int64_t first = (ranks.rank() * count + micro) * rows;
    tessera::set_requires_gradient_sync(
        model, micro == count - 1 ? tessera::Sync::on : tessera::Sync::off);
    const Tensor loss =
        model.loss(fixture, step, first, rows) / static_cast<double>(count);
    loss.backward();
    total += loss.detach();
  }
  ranks.all_reduce(total, tessera::ReduceOp::sum, {}).wait();
  return total.item<double>() / ranks.size();
}

Json final_weights(Model& model) {
  const tessera::FullParameters whole(model, tessera::Write::discard);
  Json final;
  for (const auto& item : model.named_parameters()) {
    const Tensor flat = item.value().detach().flatten().contiguous();
    const float* data = flat.const_data_ptr<float>();
    final[item.key()] = {
        {"shape", item.value().sizes().vec()},
        {"data", std::vector<float>(data, data + flat.numel())}};
  }
  return final;
}

Json train(const Fixture& fixture, const tessera::DeviceMesh& mesh,
           tessera::Communicator& ranks) {
  const Json& options = fixture.json()["job"]["optimizer"];
  const auto model = fsdp2_fixtures::make_model(fixture);
  freeze(*model, fixture.json()["job"]["frozen"]);
  shard(*model, fixture, mesh);
  const auto optimizer = make_optimizer(options, model->parameters());
  const double max_norm =
      options["max_norm"].is_null() ? INFINITY : double(options["max_norm"]);
  Json result;
  for (int64_t step = 0; step < fixture.num_steps(); ++step) {
    result["losses"].push_back(one_step(*model, fixture, step, ranks));
    result["grad_norms"].push_back(
        tessera::clip_grad_norm_(model->parameters(), max_norm).item<double>());
    optimizer->step();
    optimizer->zero_grad();
  }
  result["final"] = final_weights(*model);
  return result;
}

void run(const std::string& folder) {
  const auto world = tessera::init_distributed();
  const auto mesh = tessera::init_device_mesh(world);
  const auto ranks = world.make_communicator("losses", {0, 1});
  Json results;
  for (const std::string name :
       Json::parse(std::ifstream(folder + "/cases.json"))) {
    results[name] = train(Fixture(folder, name), mesh, *ranks);
  }
  if (world.rank() == 0) std::ofstream(folder + "/tessera.json") << results;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "fsdp2_live: got %d arguments; give the folder.\n",
                 argc - 1);
    return 2;
  }
  at::set_num_threads(1);
  try {
    run(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fsdp2_live: %s\n", error.what());
    return 1;
  }
  return 0;
}
