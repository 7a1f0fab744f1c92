// Weights as Hugging Face tools keep them: one safetensors file, or a folder
// with several and an index.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/checkpoint/contents.h"

namespace tessera::checkpoint {

/// `path`: a file, or a folder. Names are paths of one step.
/// Errors: CheckpointError.
[[nodiscard]] Contents open_safetensors(const std::string& path);

/// Writes one file, in place of one that is there, by way of a temporary name.
/// Values are left out: the format has none.
/// Errors: Unsupported for dtypes that the format lacks; CheckpointError.
void write_safetensors_file(const Contents& contents, const std::string& path,
                            const Progress& progress = no_progress());

/// Writes files of at most `most_file_bytes`, and an index if they are several.
void write_safetensors_folder(const Contents& contents,
                              const std::string& folder,
                              uint64_t most_file_bytes,
                              const Progress& progress = no_progress());

}  // namespace tessera::checkpoint
