// From one form of files to another: checkpoints, files of torch.save, and
// safetensors.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/checkpoint/contents.h"

namespace tessera::checkpoint {

struct ConvertOptions {
  // Only what is below this name of the source, without the name. "" for all.
  std::string from_prefix = "";
  // What stands in front of all names in the result. "" for nothing.
  std::string to_prefix = "";
  uint64_t most_file_bytes = uint64_t{5} * 1000 * 1000 * 1000;  // safetensors
  Progress progress = no_progress();
};

/// The form that a path asks for: .safetensors, or .pt, .pth, .bin, .ckpt for a
/// file of torch.save, or a checkpoint.
[[nodiscard]] Form form_for(const std::string& path);

struct Converted {
  size_t num_tensors = 0;
  size_t num_values = 0;
  size_t num_left_out = 0;  // values, for which safetensors has no place
};

/// Writes what lies at `from` to `to`, in that form: of safetensors one file if
/// `to` ends so, else a folder.
/// Errors: those of contents.h and of the forms.
Converted convert(const std::string& from, const std::string& to, Form form,
                  const ConvertOptions& options = {});

}  // namespace tessera::checkpoint
