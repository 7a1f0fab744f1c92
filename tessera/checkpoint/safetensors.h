// Tensors in safetensors files, as Hugging Face tools read and write them.
//
//   safetensors::save("weights.safetensors", {{"weight", weight}});
//   for (auto& [name, tensor] : safetensors::load("weights.safetensors")) ...
//
// A folder holds one file, model.safetensors, or several with an index.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/safetensors_format.h"

namespace tessera::safetensors {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Writes `tensors` (plain, on any device, any strides) to one file, in place
/// of one that is there, by way of a temporary name. Tensors that share memory
/// are written each in full. Host memory: one tensor at a time. Errors:
/// InvalidArgument for a name twice; Unsupported for a dtype that the
///         format lacks (complex128, complex32, float4); CheckpointError.
void save(const std::string& path, const NamedTensors& tensors,
          const Metadata& metadata = {{"format", "pt"}});

/// All tensors of one file, in its order, on the CPU.
[[nodiscard]] NamedTensors load(const std::string& path);

/// Writes model.safetensors, or files of at most `most_bytes` with an index,
/// into `folder`, which must exist. The index comes last.
void save_folder(const std::string& folder, const NamedTensors& tensors,
                 uint64_t most_bytes = uint64_t{5} * 1000 * 1000 * 1000,
                 const Metadata& metadata = {{"format", "pt"}});

/// All tensors of a folder, by its index if it has one.
/// Errors: CheckpointError for a file or a tensor that the index promises and
///         that is not there.
[[nodiscard]] NamedTensors load_folder(const std::string& folder);

}  // namespace tessera::safetensors
