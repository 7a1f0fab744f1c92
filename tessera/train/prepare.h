// From text to a token file: the work of `tessera prepare`.
//
//   const auto codec = make_text_codec({.name = "bytes"});
//   PrepareSummary s = prepare(*codec, {.inputs = {"novels/"},
//                                       .output = "novels.tok",
//                                       .validation = 0.05});
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/train/text_codec.h"
#include "tessera/train/token_format.h"

namespace tessera::train {

enum class Separator { between_documents, none };

struct PrepareOptions {
  std::vector<std::string> inputs = {};  // files and folders
  std::string output = {};
  std::string field = "text";  // of .jsonl files
  // The last share of the text, in [0, 1). It begins with a line of a plain
  // file, or with a document of a .jsonl file.
  double validation = 0;
  std::vector<std::string> validation_inputs = {};  // instead of a share
  Separator separator = Separator::between_documents;
  // Told how many bytes of text were taken, again and again.
  std::function<void(int64_t)> on_bytes = {};
};

struct PrepareSummary {
  TokenHeader header;
  int64_t num_documents = 0;  // a document in both splits counts once
  int64_t num_bytes = 0;      // of the files that were read
};

/// Bytes of all files that `prepare` will read.
/// Errors: as prepare.
[[nodiscard]] int64_t num_input_bytes(const PrepareOptions& options);

/// Errors: Failure. missing_data, damaged_data: of an input, see text_source.h.
///         short_data: no text, or none for the validation that was asked for.
///         cannot_write: the output. InvalidArgument: no input, a share outside
///         [0, 1) or beside validation inputs, an output that is an input.
PrepareSummary prepare(const TextCodec& codec, const PrepareOptions& options);

}  // namespace tessera::train
