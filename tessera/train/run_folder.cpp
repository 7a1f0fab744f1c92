#include "tessera/train/run_folder.h"

#include <torch/torch.h>

#include <map>

#include "tessera/checkpoint/safetensors.h"
#include "tessera/shard/full_parameters.h"
#include "tessera/train/failure.h"

namespace tessera::train {
namespace {

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
