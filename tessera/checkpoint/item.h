// One item of a checkpoint: a tensor's layout and bytes, or a value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/checkpoint/pickle.h"
#include "tessera/checkpoint/zip_reader.h"
#include "tessera/state/value.h"

namespace tessera::checkpoint {

/// How an item's tensor lies in its bytes. Numbers are elements unless they say
/// bytes.
struct ItemTensor {
  Dtype dtype = Dtype::float32;
  std::vector<int64_t> sizes = {};
  std::vector<int64_t> strides = {};
  int64_t storage_offset = 0;
  bool conjugate = false;   // values are the conjugates of the bytes
  bool negative = false;    // values are the negatives of the bytes
  uint64_t data_begin = 0;  // in the slice
  uint64_t data_bytes = 0;
  std::optional<uint32_t> data_crc = {};

  /// Row-major without gaps: ranges of elements are ranges of bytes.
  [[nodiscard]] bool is_contiguous() const;
};

/// Strides of a row-major tensor, as PyTorch counts them.
[[nodiscard]] std::vector<int64_t> row_major_strides(
    const std::vector<int64_t>& sizes);

/// Puts a contiguous tensor on the stack of the program that `out` writes; its
/// bytes are in the record data/`record`.
void write_tensor(PickleWriter& out, Dtype dtype,
                  const std::vector<int64_t>& sizes, const std::string& record);

/// data.pkl of a contiguous tensor.
[[nodiscard]] std::string tensor_pickle(Dtype dtype,
                                        const std::vector<int64_t>& sizes);

/// Reads what stands around a tensor's bytes, and checks it against the slice.
/// Errors: CheckpointError; Unsupported for another byte order than ours.
[[nodiscard]] ItemTensor read_tensor_item(const FileSlice& slice);

/// Whether a node of a pickle is a tensor.
[[nodiscard]] bool is_tensor_node(const PickleNode& node);

/// The tensor that a node describes, and where its bytes are. Checked against
/// the slice. Errors: CheckpointError.
[[nodiscard]] ItemTensor read_tensor_node(const FileSlice& slice,
                                          const std::vector<ZipRecord>& records,
                                          const PickleNode& node);

/// Errors: Unsupported for another byte order than ours.
void check_byte_order(const FileSlice& slice,
                      const std::vector<ZipRecord>& records);

enum class OnUnknown {
  refuse,  // CheckpointError that names what is unknown
  keep,    // Value::Opaque with the item's bytes
};

/// Errors: CheckpointError for damage, whatever `on_unknown` says.
[[nodiscard]] Value read_value_item(const FileSlice& slice,
                                    OnUnknown on_unknown);

/// The item of a value; an opaque one comes out as it was read.
[[nodiscard]] std::string write_value_item(const Value& value);

}  // namespace tessera::checkpoint
