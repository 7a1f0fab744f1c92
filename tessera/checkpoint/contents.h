// What a file of weights or of state holds, whatever its form: the names, and a
// way to read each tensor. Without tensors: bytes go from file to file, one
// tensor in memory at a time.
//
//   Contents contents = open_contents("ckpt/step-1000");  // any of the forms
//   write_torch_file(below(contents, "model"), "weights.pt");
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/state/path.h"
#include "tessera/state/value.h"

namespace tessera::checkpoint {

struct ContentTensor {
  Path path = {};
  Dtype dtype = Dtype::float32;
  std::vector<int64_t> sizes = {};
  // All its bytes, row-major. Errors: CheckpointError.
  std::function<std::vector<std::byte>()> read = {};
};

struct ContentValue {
  Path path = {};
  Value value = {};
};

struct Contents {
  std::string where = {};  // for messages
  std::vector<ContentTensor> tensors = {};
  std::vector<ContentValue> values = {};
};

enum class Form {
  checkpoint,   // a folder of torch.distributed.checkpoint
  torch_file,   // one file of torch.save
  safetensors,  // one file, or a folder of Hugging Face tools
};

/// The form of what lies at `path`. Errors: CheckpointError for none of them.
[[nodiscard]] Form form_of(const std::string& path);

/// Errors: CheckpointError for damage, and for what none of the forms holds.
[[nodiscard]] Contents open_contents(const std::string& path);

/// Only what is below `prefix`, a name with dots; without it. All for "".
/// Errors: InvalidArgument when there are no tensors.
[[nodiscard]] Contents below(Contents contents, const std::string& prefix);

/// All of it below one more name; the same for "".
[[nodiscard]] Contents under(Contents contents, const std::string& name);

[[nodiscard]] uint64_t bytes_of(const ContentTensor& tensor);

/// Told the bytes done and those in all, now and then.
using Progress = std::function<void(uint64_t done, uint64_t all)>;

[[nodiscard]] inline Progress no_progress() {
  return [](uint64_t, uint64_t) {};
}

/// Writes a checkpoint with all items in one file, each tensor in one piece.
void write_checkpoint(const Contents& contents, const std::string& path,
                      const Progress& progress = no_progress());

}  // namespace tessera::checkpoint
