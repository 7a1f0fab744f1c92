#include "tessera/train/run_folder.h"

#include <torch/torch.h>

#include <filesystem>
#include <map>
#include <system_error>

#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/shard/full_parameters.h"
#include "tessera/train/build_model_meta.h"
#include "tessera/train/failure.h"

namespace tessera::train {
namespace {

constexpr const char* kConfig = "/config.toml";
constexpr const char* kTokenizer = "/tokenizer.model";

std::map<std::string, at::Tensor> read_weights(const std::string& folder) {
  try {
    std::map<std::string, at::Tensor> weights;
    for (auto& [name, tensor] : safetensors::load_folder(folder)) {
      weights.emplace(name, tensor);
    }
    return weights;
  } catch (const CheckpointError& error) {
    throw Failure(
        ExitCode::missing_weights,
        str("no weights can be read from '", folder,
            "'; give the folder that tessera train wrote. ", error.what()));
  }
}

}  // namespace

void make_run_folder(const TrainConfig& config, const Tokenizer& tokenizer) {
  const std::string& folder = config.output.folder;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  require(!error, ExitCode::cannot_write, [&] {
    return str("the folder '", folder, "' cannot be made: ", error.message(),
               "; give another output.folder.");
  });
  try {
    checkpoint::replace_file(folder + kConfig, config.toml);
    std::filesystem::remove(folder + kTokenizer, error);
    if (!tokenizer.model.empty()) {
      checkpoint::replace_file(folder + kTokenizer, tokenizer.model);
    }
  } catch (const CheckpointError& failure) {
    throw Failure(ExitCode::cannot_write, failure.what());
  }
}

TrainConfig load_config(const std::string& folder) {
  require(std::filesystem::exists(folder + kConfig), ExitCode::missing_weights,
          [&] {
            return str("'", folder, "' holds no config.toml; give the folder ",
                       "that tessera train wrote.");
          });
  return read_train_config(folder + kConfig);
}

Tokenizer load_tokenizer(const std::string& folder) {
  constexpr uint64_t kMostBytes = 1'000'000'000;
  if (!std::filesystem::exists(folder + kTokenizer)) return {};
  return {"sentencepiece",
          checkpoint::read_file(folder + kTokenizer, kMostBytes)};
}

LanguageModelPtr load_model(const TrainConfig& config, const World& world,
                            const std::string& folder) {
  auto model = build_model_meta(config.model);
  ShardConfig how = config.shard;
  // Those of the run's ranks, which need not divide these.
  how.replicas = 1;
  how.reshard_ranks = 0;
  shard_model(*model, how, shard_mesh(how, world));
  draw_weights(*model, {.layers = config.model.layers});
  load_weights(*model, folder);
  model->eval();
  return model;
}

void save_weights(LanguageModel& model, const DeviceMesh& mesh,
                  const std::string& folder) {
  const torch::NoGradGuard no_grad;
  const FullParameters whole(model, Write::discard);
  if (mesh.world().rank() != 0) return;
  safetensors::NamedTensors tensors;
  for (const auto& item : model.named_parameters()) {
    tensors.emplace_back(item.key(), item.value().detach());
  }
  try {
    safetensors::save_folder(folder, tensors);
  } catch (const CheckpointError& error) {
    throw Failure(ExitCode::cannot_write,
                  str("the weights were not written: ", error.what()));
  }
}

void load_weights(LanguageModel& model, const std::string& folder) {
  const torch::NoGradGuard no_grad;
  const auto weights = read_weights(folder);
  const FullParameters whole(model);
  for (auto& item : model.named_parameters()) {
    const auto found = weights.find(item.key());
    const bool fits =
        found != weights.end() && found->second.sizes() == item.value().sizes();
    require(fits, ExitCode::missing_weights, [&] {
      return str(
          "'", folder, "' has ",
          found == weights.end()
              ? str("no '", item.key(), "'")
              : str("'", item.key(), "' of sizes ", found->second.sizes(),
                    " where ", item.value().sizes(), " are expected"),
          "; its config.toml is that of another model.");
    });
    item.value().copy_(found->second);
  }
}

}  // namespace tessera::train
