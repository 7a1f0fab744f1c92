// `tessera checkpoint`: looks at checkpoints and turns them into other files.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <iostream>
#include <memory>

#include "cli/command.h"
#include "tessera/base/error.h"
#include "tessera/checkpoint/convert.h"

namespace tessera::cli {
namespace {

using namespace checkpoint;

constexpr const char* kFooter = R"(
Examples:
  tessera checkpoint inspect ckpt/step-1000
  tessera checkpoint verify ckpt/step-1000
  tessera checkpoint export ckpt/step-1000 weights     (safetensors)
  tessera checkpoint import weights ckpt/step-0
  tessera checkpoint consolidate ckpt/step-1000 one-file
Checkpoints are those of torch.distributed.checkpoint, ours and Python's. Nothing
in them is executed.)";

struct Flags {
  std::string from;
  std::string to;
  std::string prefix = "model";
  std::string format = "hf";
};

// A line that is written over, on a terminal; nothing elsewhere.
Progress progress_bar() {
  if (::isatty(STDERR_FILENO) == 0) return [](uint64_t, uint64_t) {};
  return [](uint64_t done, uint64_t all) {
    constexpr uint64_t kMegabyte = 1000 * 1000;
    std::cerr << "\r" << done / kMegabyte << " of " << all / kMegabyte << " MB"
              << (done == all ? "\n" : "") << std::flush;
  };
}

std::string show(const std::vector<int64_t>& sizes) {
  std::string out = "[";
  for (const int64_t size : sizes) {
    out += (out.size() > 1 ? ", " : "") + str(size);
  }
  return out + "]";
}

int inspect(const Flags& flags) {
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

int verify(const Flags& flags) {
  const CheckpointReader reader(flags.from);
  const uint64_t num_bytes = reader.verify();
  std::cout << "'" << flags.from << "' is whole: " << num_bytes
            << " bytes compared\n";
  return 0;
}

ConvertOptions options_of(const Flags& flags) {
  return {.prefix = flags.prefix, .progress = progress_bar()};
}

int export_to(const Flags& flags) {
  require<InvalidArgument>(flags.format == "hf", [&] {
    return "--format is '" + flags.format + "'; there is hf";
  });
  export_safetensors(CheckpointReader(flags.from), flags.to, options_of(flags));
  return 0;
}

int import_from(const Flags& flags) {
  import_safetensors(flags.from, flags.to, options_of(flags));
  return 0;
}

int consolidate_to(const Flags& flags) {
  consolidate(CheckpointReader(flags.from), flags.to, options_of(flags));
  return 0;
}

struct Action {
  const char* name;
  const char* summary;
  bool writes;
  int (*run)(const Flags& flags);
};

constexpr std::array kActions = {
    Action{"inspect", "List its tensors and values", false, inspect},
    Action{"verify", "Compare every byte with its checksum", false, verify},
    Action{"export", "Write its model as safetensors", true, export_to},
    Action{"import", "Make one of a folder of safetensors", true, import_from},
    Action{"consolidate", "Write it again with one file", true, consolidate_to},
};

void add_options(CLI::App& sub, const Action& action, Flags& flags) {
  sub.add_option("from", flags.from, "The folder to read")->required();
  if (!action.writes) return;
  sub.add_option("to", flags.to, "The folder to write")->required();
  if (action.run == consolidate_to) return;
  sub.add_option("--prefix", flags.prefix,
                 "The part of the checkpoint that holds the model")
      ->capture_default_str();
  if (action.run == export_to) {
    sub.add_option("--format", flags.format, "hf: as Hugging Face tools do")
        ->capture_default_str();
  }
}

}  // namespace

std::function<int()> add_checkpoint_command(CLI::App& app,
                                            const WordsAfterDashes& words) {
  const auto flags = std::make_shared<Flags>();
  app.footer(kFooter);
  app.require_subcommand(1);
  for (const Action& action : kActions) {
    add_options(*app.add_subcommand(action.name, action.summary), action,
                *flags);
  }
  return [flags, words, &app] {
    refuse_words_after_dashes("checkpoint", words);
    for (const Action& action : kActions) {
      if (app.got_subcommand(action.name)) return action.run(*flags);
    }
    return 0;
  };
}

}  // namespace tessera::cli
