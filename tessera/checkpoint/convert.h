// Checkpoints to safetensors folders and back, and into one file. Without
// tensors: bytes go from file to file, one tensor in memory at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tessera/checkpoint/reader.h"

namespace tessera::checkpoint {

/// Told the bytes done and those in all, now and then.
using Progress = std::function<void(uint64_t done, uint64_t all)>;

struct ConvertOptions {
  // Of a checkpoint's keys, the part that is exported, or below which imported
  // tensors stand; not part of their names in safetensors. "" for all.
  std::string prefix = "model";
  uint64_t most_file_bytes = uint64_t{5} * 1000 * 1000 * 1000;
  Progress progress = [](uint64_t, uint64_t) {};
};

/// Writes the tensors below `prefix` to `folder`, as Hugging Face tools keep
/// them. Errors: InvalidArgument when there are none; Unsupported for dtypes
/// that the format lacks; CheckpointError.
void export_safetensors(const CheckpointReader& reader,
                        const std::string& folder,
                        const ConvertOptions& options = {});

/// Writes the tensors of a safetensors folder as a checkpoint.
void import_safetensors(const std::string& folder, const std::string& path,
                        const ConvertOptions& options = {});

/// Writes a checkpoint with all items in one file, each tensor in one piece.
void consolidate(const CheckpointReader& reader, const std::string& path,
                 const ConvertOptions& options = {});

}  // namespace tessera::checkpoint
