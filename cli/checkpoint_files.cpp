#include "cli/checkpoint_files.h"

#include <iostream>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/base/progress_bar.h"
#include "tessera/checkpoint/convert.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/safetensors_contents.h"
#include "tessera/checkpoint/storage.h"
#include "tessera/train/config_value.h"
#include "tessera/train/hugging_face.h"
#include "tessera/train/hugging_face_contents.h"
#include "tessera/train/import_run.h"
#include "tessera/train/train_config.h"

namespace tessera::cli {
namespace {

using namespace checkpoint;

constexpr const char* kConfigJson = "config.json";
constexpr const char* kConfigToml = "config.toml";
constexpr uint64_t kMostConfig = 1 << 20;
constexpr uint64_t kMostTokenizer = 1'000'000'000;
constexpr uint64_t kMostFileBytes = uint64_t{5} * 1000 * 1000 * 1000;

// A bar that is made when the whole is known.
Progress progress_bar(const char* title) {
  struct Shown {
    std::unique_ptr<ProgressBar> bar;
    uint64_t done = 0;
  };
  return
      [title, shown = std::make_shared<Shown>()](uint64_t done, uint64_t all) {
        if (!shown->bar) {
          shown->bar =
              std::make_unique<ProgressBar>(title, static_cast<int64_t>(all));
        }
        shown->bar->advance(static_cast<int64_t>(done - shown->done));
        shown->done = done;
        if (done == all) shown->bar->finish();
      };
}

Form form_named(const FileFlags& flags) {
  if (flags.form == "dcp") return Form::checkpoint;
  if (flags.form == "torch") return Form::torch_file;
  if (flags.form == "safetensors") return Form::safetensors;
  return form_for(flags.to);
}

// The weights of a checkpoint are below a name; elsewhere they are all there
// is.
Contents open_model(const FileFlags& flags) {
  const bool nested = form_of(flags.from) == Form::checkpoint;
  return below(open_contents(flags.from), nested ? flags.model_prefix : "");
}

// config.toml beside `from`, or in one of the two folders above it.
std::string find_config(const FileFlags& flags) {
  if (!flags.config.empty()) return flags.config;
  std::string folder = flags.from;
  for (int up = 0; up < 3; ++up) {
    const std::string path = join_path(folder, kConfigToml);
    if (local_storage()->exists(path)) return path;
    folder = parent_path(folder);
  }
  throw InvalidArgument(
      str("tessera checkpoint export: there is no ", kConfigToml, " near '",
          flags.from,
          "', and transformers must be told the model's shape. Give "
          "--config, or --format plain."));
}

bool is_llama_folder(const std::string& folder) {
  const std::string path = join_path(folder, kConfigJson);
  if (!local_storage()->exists(path)) return false;
  const std::string json = read_file(path, kMostConfig);
  return json.find("\"llama\"") != std::string::npos;
}

void report(size_t tensors, const std::string& to) {
  std::cout << tensors << " tensors written to '" << to << "'\n";
}

}  // namespace

int convert_files(const FileFlags& flags) {
  const Converted result = convert(flags.from, flags.to, form_named(flags),
                                   {.from_prefix = flags.from_prefix,
                                    .to_prefix = flags.to_prefix,
                                    .progress = progress_bar("converting")});
  report(result.num_tensors, flags.to);
  if (result.num_left_out > 0) {
    std::cout << result.num_left_out
              << " values were left out: safetensors has no place for them\n";
  }
  return 0;
}

int export_model(const FileFlags& flags) {
  Contents contents = open_model(flags);
  const Progress progress = progress_bar("exporting");
  if (flags.format == "plain") {
    write_safetensors_folder(contents, flags.to, kMostFileBytes, progress);
    report(contents.tensors.size(), flags.to);
    return 0;
  }
  const auto model = train::read_train_config(find_config(flags)).model;
  const std::string config = train::write_hugging_face_config(
      model, row_of(contents.tensors.front().dtype).name);
  contents = train::to_hugging_face(std::move(contents));
  write_safetensors_folder(contents, flags.to, kMostFileBytes, progress);
  replace_file(join_path(flags.to, kConfigJson), config);
  report(contents.tensors.size(), flags.to);
  return 0;
}

namespace {

// --- import into a run folder ------------------------------------------------

train::ModelConfig hugging_face_model(const FileFlags& flags) {
  const std::string path = join_path(flags.from, kConfigJson);
  require<InvalidArgument>(local_storage()->exists(path), [&] {
    return str("there is no '", path,
               "' that says the model's shape. Give --config with the "
               "config.toml of a run.");
  });
  return train::read_hugging_face_config(read_file(path, kMostConfig), path);
}

train::TrainConfig run_config(const FileFlags& flags) {
  std::vector<std::string> overrides = {"output.folder=" + flags.to};
  if (!flags.config.empty()) {
    return train::read_train_config(flags.config, overrides);
  }
  const train::ModelConfig model = hugging_face_model(flags);
  const auto set = [&](const char* key, const auto& value) {
    overrides.push_back(str(key, "=", train::to_toml(value)));
  };
  set("data.tokens", flags.tokens);
  set("model.vocab", model.vocab);
  set("model.dim", model.dim);
  set("model.layers", model.layers);
  set("model.heads", model.heads);
  set("model.kv_heads", model.kv_heads);
  set("model.ffn", model.ffn);
  set("model.seq", model.seq);
  set("model.rope_base", model.rope_base);
  set("model.norm_eps", model.norm_eps);
  set("model.tied", model.tied);
  return train::default_train_config(overrides);
}

train::Tokenizer run_tokenizer(const FileFlags& flags) {
  std::string path = flags.tokenizer;
  if (path.empty()) {
    path = join_path(flags.from, "tokenizer.model");
    if (!local_storage()->exists(path)) {
      std::cout << "no tokenizer.model: bytes are the tokens of this run\n";
      return {};
    }
  }
  return {"sentencepiece", read_file(path, kMostTokenizer)};
}

int import_to_run(const FileFlags& flags) {
  const train::TrainConfig config = run_config(flags);
  const bool nested =
      flags.from_prefix.empty() && form_of(flags.from) == Form::checkpoint;
  Contents weights = below(open_contents(flags.from),
                           nested ? flags.model_prefix : flags.from_prefix);
  if (flags.format == "hf" ||
      (flags.format == "auto" && train::has_hugging_face_names(weights))) {
    weights = train::from_hugging_face(std::move(weights), config.model);
  }
  const size_t count =
      train::import_run(config, std::move(weights), run_tokenizer(flags),
                        progress_bar("importing"));
  report(count, flags.to);
  return 0;
}

}  // namespace

int import_model(const FileFlags& flags) {
  if (flags.run) return import_to_run(flags);
  Contents contents = open_contents(flags.from);
  if (flags.format == "hf" ||
      (flags.format == "auto" && is_llama_folder(flags.from))) {
    const std::string path = join_path(flags.from, kConfigJson);
    const train::ModelConfig model =
        train::read_hugging_face_config(read_file(path, kMostConfig), path);
    contents = train::from_hugging_face(std::move(contents), model);
  }
  contents = under(std::move(contents), flags.model_prefix);
  write_checkpoint(contents, flags.to, progress_bar("importing"));
  report(contents.tensors.size(), flags.to);
  return 0;
}

int consolidate_files(const FileFlags& flags) {
  const Contents contents = open_contents(flags.from);
  write_checkpoint(contents, flags.to, progress_bar("consolidating"));
  report(contents.tensors.size(), flags.to);
  return 0;
}

}  // namespace tessera::cli
