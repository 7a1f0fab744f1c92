#include "cli/checkpoint_files.h"

#include <iostream>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/base/progress_bar.h"
#include "tessera/checkpoint/convert.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/safetensors_contents.h"
#include "tessera/checkpoint/storage.h"
#include "tessera/train/hugging_face.h"
#include "tessera/train/hugging_face_contents.h"
#include "tessera/train/train_config.h"

namespace tessera::cli {
namespace {

using namespace checkpoint;

constexpr const char* kConfigJson = "config.json";
constexpr const char* kConfigToml = "config.toml";
constexpr uint64_t kMostConfig = 1 << 20;
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

int import_model(const FileFlags& flags) {
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
