// `tessera checkpoint`: looks at checkpoints and turns them into other files.
#include <CLI/CLI.hpp>
#include <array>
#include <iostream>
#include <memory>

#include "cli/checkpoint_files.h"
#include "cli/command.h"
#include "tessera/base/error.h"
#include "tessera/checkpoint/reader.h"

namespace tessera::cli {
namespace {

using namespace checkpoint;

constexpr const char* kFooter = R"(
Examples:
  tessera checkpoint inspect ckpt/step-1000
  tessera checkpoint verify ckpt/step-1000
  tessera checkpoint convert ckpt/step-1000 all.pt     (for torch.load)
  tessera checkpoint convert all.pt ckpt/step-0        (and back)
  tessera checkpoint convert --from-prefix model ckpt/step-1000 w.safetensors
  tessera checkpoint export run/checkpoints/step-1000 weights  (for transformers)
  tessera checkpoint import weights ckpt/step-0
  tessera checkpoint import weights run --run   (for tessera generate and train)
  tessera checkpoint consolidate ckpt/step-1000 one-file
Checkpoints are those of torch.distributed.checkpoint, ours and Python's. Nothing
in them is executed.)";

std::string show(const std::vector<int64_t>& sizes) {
  std::string out = "[";
  for (const int64_t size : sizes) {
    out += (out.size() > 1 ? ", " : "") + str(size);
  }
  return out + "]";
}

int inspect(const FileFlags& flags) {
  const CheckpointReader reader(flags.from);
  uint64_t num_bytes = 0;
  for (const auto& [key, tensor] : reader.metadata().tensors) {
    std::cout << key << "  " << row_of(tensor.dtype).name << " "
              << show(tensor.sizes) << " in " << tensor.boxes.size()
              << (tensor.boxes.size() == 1 ? " piece\n" : " pieces\n");
    num_bytes += *num_bytes_of(tensor.dtype, tensor.sizes);
  }
  for (const auto& [key, place] : reader.metadata().values) {
    std::cout << key << "  " << reader.read_value(key, OnUnknown::keep).show()
              << "\n";
  }
  std::cout << reader.metadata().tensors.size() << " tensors of " << num_bytes
            << " bytes, " << reader.metadata().values.size() << " values\n";
  return 0;
}

int verify(const FileFlags& flags) {
  const CheckpointReader reader(flags.from);
  const uint64_t num_bytes = reader.verify();
  std::cout << "'" << flags.from << "' is whole: " << num_bytes
            << " bytes compared\n";
  return 0;
}

struct Action {
  const char* name;
  const char* summary;
  void (*add_options)(CLI::App& sub, FileFlags& flags);
  int (*run)(const FileFlags& flags);
};

void add_from(CLI::App& sub, FileFlags& flags) {
  sub.add_option("from", flags.from, "The folder to read")->required();
}

void add_both(CLI::App& sub, FileFlags& flags) {
  sub.add_option("from", flags.from, "The folder or file to read")->required();
  sub.add_option("to", flags.to, "The folder or file to write")->required();
}

void add_convert(CLI::App& sub, FileFlags& flags) {
  add_both(sub, flags);
  sub.add_option("--form", flags.form,
                 "What to write: dcp, torch or safetensors; auto: as the name "
                 "of `to` says")
      ->check(CLI::IsMember({"auto", "dcp", "torch", "safetensors"}))
      ->capture_default_str();
  sub.add_option("--from-prefix", flags.from_prefix,
                 "Take only what is below this name, without it");
  sub.add_option("--to-prefix", flags.to_prefix,
                 "Put this name in front of all others");
}

void add_export(CLI::App& sub, FileFlags& flags) {
  add_both(sub, flags);
  sub.add_option("--format", flags.format,
                 "hf: names and config.json of transformers, for Llama-type "
                 "models; plain: the names that are there")
      ->check(CLI::IsMember({"hf", "plain"}))
      ->capture_default_str();
  sub.add_option("--prefix", flags.model_prefix,
                 "The part of a checkpoint that holds the model")
      ->capture_default_str();
  sub.add_option("--config", flags.config,
                 "The run's config.toml; found in the folders above `from`");
}

void add_run_options(CLI::App& sub, FileFlags& flags) {
  auto* run = sub.add_flag("--run", flags.run,
                           "Make `to` a run folder, for tessera generate and "
                           "tessera train --resume auto");
  sub.add_option("--from-prefix", flags.from_prefix,
                 "Take only what is below this name of `from`; a checkpoint's "
                 "model, unless said")
      ->needs(run);
  sub.add_option("--config", flags.config,
                 "A config.toml with the model's shape, if `from` has no "
                 "config.json")
      ->needs(run);
  sub.add_option("--tokens", flags.tokens,
                 "The token file of the run's config.toml, unless --config "
                 "names one")
      ->needs(run)
      ->capture_default_str();
  sub.add_option("--tokenizer", flags.tokenizer,
                 "A SentencePiece model; tokenizer.model in `from`, unless "
                 "said")
      ->needs(run);
}

void add_import(CLI::App& sub, FileFlags& flags) {
  flags.format = "auto";
  add_both(sub, flags);
  sub.add_option("--format", flags.format,
                 "hf: names of transformers; plain: the names that are there; "
                 "auto: hf if there is a config.json of a Llama")
      ->check(CLI::IsMember({"auto", "hf", "plain"}))
      ->capture_default_str();
  sub.add_option("--prefix", flags.model_prefix,
                 "The part of the checkpoint that will hold the model")
      ->capture_default_str();
  add_run_options(sub, flags);
}

constexpr std::array kActions = {
    Action{"inspect", "List its tensors and values", add_from, inspect},
    Action{"verify", "Compare every byte with its checksum", add_from, verify},
    Action{"convert", "Between dcp, torch.save files and safetensors",
           add_convert, convert_files},
    Action{"export", "Write its model for Hugging Face tools", add_export,
           export_model},
    Action{"import", "Make one of the weights of Hugging Face tools",
           add_import, import_model},
    Action{"consolidate", "Write it again with one file", add_both,
           consolidate_files},
};

}  // namespace

std::function<int()> add_checkpoint_command(CLI::App& app,
                                            const WordsAfterDashes& words) {
  app.footer(kFooter);
  app.require_subcommand(1);
  std::vector<std::shared_ptr<FileFlags>> flags;
  for (const Action& action : kActions) {
    flags.push_back(std::make_shared<FileFlags>());
    action.add_options(*app.add_subcommand(action.name, action.summary),
                       *flags.back());
  }
  return [flags, words, &app] {
    refuse_words_after_dashes("checkpoint", words);
    for (size_t i = 0; i < kActions.size(); ++i) {
      if (app.got_subcommand(kActions[i].name)) {
        return kActions[i].run(*flags[i]);
      }
    }
    return 0;
  };
}

}  // namespace tessera::cli
