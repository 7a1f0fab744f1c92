#include "tessera/train/import_run.h"

#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/checkpoint/safetensors_contents.h"
#include "tessera/state/key_report.h"
#include "tessera/train/build_model_meta.h"
#include "tessera/train/checkpoint_folder.h"
#include "tessera/train/failure.h"
#include "tessera/train/hugging_face_contents.h"
#include "tessera/train/run_folder.h"

namespace tessera::train {
namespace {

using checkpoint::Contents;
using checkpoint::ContentTensor;

constexpr uint64_t kMostFileBytes = uint64_t{5} * 1000 * 1000 * 1000;

using Shapes = std::map<std::string, std::vector<int64_t>>;

Shapes shapes_of(const ModelConfig& model) {
  Shapes shapes;
  for (const auto& item : build_model_meta(model)->named_parameters()) {
    shapes[item.key()] = item.value().sizes().vec();
  }
  return shapes;
}

bool is_table(const ContentTensor& tensor) {
  const std::string name = key_of(tensor.path);
  return name == "cos" || name == "sin";
}

void check_names(const Contents& weights, const Shapes& expected) {
  std::vector<std::string> missing, unexpected;
  std::set<std::string> given;
  for (const ContentTensor& tensor : weights.tensors) {
    const std::string name = key_of(tensor.path);
    given.insert(name);
    if (!expected.contains(name)) unexpected.push_back(name);
  }
  for (const auto& [name, sizes] : expected) {
    if (!given.contains(name)) missing.push_back(name);
  }
  require<InvalidArgument>(missing.empty(), [&] {
    return str("'", weights.where, "' lacks ", show_keys(missing),
               " of the model that its config describes.");
  });
  require<InvalidArgument>(unexpected.empty(), [&] {
    return str("'", weights.where, "' has ", show_keys(unexpected),
               ", which the model that its config describes has not.");
  });
}

void check_sizes(const Contents& weights, const Shapes& expected) {
  const auto show = [](const std::vector<int64_t>& sizes) {
    std::string text;
    for (const int64_t size : sizes)
      text += str(text.empty() ? "" : ", ", size);
    return str("[", text, "]");
  };
  for (const ContentTensor& tensor : weights.tensors) {
    const std::string name = key_of(tensor.path);
    require<InvalidArgument>(tensor.sizes == expected.at(name), [&] {
      return str("'", weights.where, "' has '", name, "' of size ",
                 show(tensor.sizes),
                 "; the model that its config describes "
                 "has ",
                 show(expected.at(name)), ".");
    });
  }
}

// What checkpoint_save.cpp writes of a run before its first step: parameters
// without moments have never had a gradient. No rank's random numbers are
// there, so it was saved by 0 ranks.
void add_first_state(Contents& contents, const TrainConfig& config,
                     const Shapes& shapes) {
  Value::Items names;
  for (const auto& [name, sizes] : shapes) names.emplace_back(name);
  contents.values = {
      {{"optim", "param_groups", int64_t{0}, "params"},
       Value::list(std::move(names))},
      {{"trainer", "step"}, int64_t{0}},
      {{"trainer", "samples"}, int64_t{0}},
      {{"trainer", "tokens"}, int64_t{0}},
      {{"trainer", "num_skipped"}, int64_t{0}},
      {{"trainer", "best_held_out"}, Value()},
      {{"trainer", "world_size"}, int64_t{0}},
      {{"trainer", "config"}, config.toml},
      {{"trainer", "text"}, ""},
  };
}

void refuse_other_run(const std::string& folder) {
  require(!std::filesystem::exists(folder + "/config.toml"),
          ExitCode::cannot_write, [&] {
            return str("'", folder,
                       "' holds a run already; give another folder.");
          });
}

}  // namespace

size_t import_run(const TrainConfig& config, Contents weights,
                  const Tokenizer& tokenizer,
                  const checkpoint::Progress& progress) {
  const std::string& folder = config.output.folder;
  refuse_other_run(folder);
  const Shapes shapes = shapes_of(config.model);
  std::erase_if(weights.tensors, is_table);
  weights.values.clear();
  check_names(weights, shapes);
  check_sizes(weights, shapes);
  make_run_folder(config, tokenizer);
  try {
    checkpoint::write_safetensors_folder(weights, folder, kMostFileBytes,
                                         progress);
    weights = with_tables(std::move(weights), config.model);
    const size_t count = weights.tensors.size();
    weights = checkpoint::under(std::move(weights), "model");
    add_first_state(weights, config, shapes);
    checkpoint::write_checkpoint(weights, checkpoint_path(folder, 0), progress);
    return count;
  } catch (const CheckpointError& error) {
    throw Failure(ExitCode::cannot_write, error.what());
  }
}

}  // namespace tessera::train
