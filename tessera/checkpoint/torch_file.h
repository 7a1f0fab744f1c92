// One file as torch.save writes it and torch.load(weights_only=True) reads it.
//
//   archive/data.pkl          the nested dicts, lists and values; where a
//   tensor
//                             is, its dtype, sizes, strides and the record
//   archive/data/0, 1, ...    the tensors' bytes
//
// Nothing in a file is executed. Names are those of torch_save_to_dcp: dicts,
// and lists that hold a dict or a tensor, are descended into.
#pragma once

#include <string>

#include "tessera/checkpoint/contents.h"

namespace tessera::checkpoint {

/// Errors: CheckpointError for damage, and for what is no dict of tensors and
///         plain values, with its name; Unsupported for files of before
///         PyTorch 1.6 and of TorchScript.
[[nodiscard]] Contents open_torch_file(const std::string& path);

/// Writes `contents`, nested as their paths say, in place of a file that is
/// there, by way of a temporary name. Tensors begin at multiples of 64 bytes.
/// Errors: CheckpointError; InvalidArgument for values that were not understood
///         and for a name that is both a leaf and a folder of others.
void write_torch_file(const Contents& contents, const std::string& path,
                      const Progress& progress = no_progress());

}  // namespace tessera::checkpoint
