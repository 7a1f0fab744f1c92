// The safetensors file format: names, dtypes, shapes and byte ranges, without
// tensors.
//
//   bytes 0..7     N, little-endian
//   bytes 8..8+N   JSON: {"name": {"dtype": "F32", "shape": [2, 3],
//                         "data_offsets": [begin, end]}, ...,
//                         "__metadata__": {"key": "text"}}
//   the rest       the tensors, row-major, little-endian, without gaps
//
// Everything that a header says is checked against the file before anything is
// read or allocated by it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/dtype.h"

namespace tessera::safetensors {

using Metadata = std::map<std::string, std::string>;

/// One tensor of a file. `begin` and `end` are positions in the file.
struct Entry {
  std::string name;
  Dtype dtype = Dtype::float32;
  std::vector<int64_t> sizes = {};
  uint64_t begin = 0;
  uint64_t end = 0;
};

struct Header {
  std::vector<Entry> tensors = {};  // in the order in which they lie
  Metadata metadata = {};
};

/// The longest JSON text that is read.
inline constexpr uint64_t kMostHeaderBytes = 100'000'000;

/// Reads a header whose file has `file_size` bytes. `json` are the bytes behind
/// the first eight; `path` is for messages.
/// Errors: CheckpointError for JSON that is none, a name twice, an unknown
///         dtype, ranges that overlap, leave gaps, do not fit the shape or do
///         not end at the end of the file.
[[nodiscard]] Header parse_header(std::string_view json, uint64_t file_size,
                                  const std::string& path);

/// The header of the file at `path`. Errors: those of `parse_header`, and
/// CheckpointError for a file that is too short for the length it gives.
[[nodiscard]] Header read_header(const std::string& path);

/// Sets the positions of `tensors` and returns the bytes that stand before
/// them: length and JSON, padded so that the data begins at a multiple of 4096
/// bytes. Tensors lie by falling alignment, then by name.
/// Errors: InvalidArgument for a name twice, "__metadata__" as a name, a
///         negative size; Unsupported for a dtype that the format lacks.
[[nodiscard]] std::string lay_out(std::vector<Entry>& tensors,
                                  const Metadata& metadata);

/// How tensors divide into files of at most `most_bytes` (one larger tensor has
/// a file of its own), in the order given. Returns for each the file's number.
[[nodiscard]] std::vector<size_t> divide_into_files(
    const std::vector<uint64_t>& num_bytes, uint64_t most_bytes);

/// "model.safetensors" for one file, else "model-00001-of-00003.safetensors".
[[nodiscard]] std::string file_name(size_t index, size_t num_files);

/// model.safetensors.index.json: which file holds which tensor.
struct Index {
  std::map<std::string, std::string> file_of = {};  // tensor name: file name
  uint64_t total_bytes = 0;
};

inline constexpr std::string_view kIndexName = "model.safetensors.index.json";

[[nodiscard]] std::string write_index(const Index& index);
/// Errors: CheckpointError for JSON that is none, and for file names that are
///         not plain names.
[[nodiscard]] Index parse_index(std::string_view json, const std::string& path);

}  // namespace tessera::safetensors
