// Writes a token file, without ever holding it in memory.
//
//   TokenFileWriter writer("novels.tok", {.vocab = 256});
//   writer.append(Split::train, tokens);         // in any order, often
//   writer.append(Split::validation, others);
//   TokenHeader header = writer.finish();
//
// Until `finish` all goes to temporary files beside the path, which vanish with
// the object. `finish` brings everything to the disk and renames: at the path
// there is the old file, or the whole new one.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "tessera/train/token_file.h"
#include "tessera/train/token_format.h"

namespace tessera::train {

struct TokenFileOptions {
  uint64_t vocab = 256;
  int64_t separator = -1;
  Tokenizer tokenizer = {};
};

class TokenFileWriter {
 public:
  /// Errors, in all functions: Failure (cannot_write) with the system's reason,
  /// as when the disk is full.
  TokenFileWriter(const std::string& path, const TokenFileOptions& options);
  ~TokenFileWriter();
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;

  /// Errors: also InvalidArgument for a token outside the vocabulary.
  void append(Split split, std::span<const uint32_t> tokens);

  /// Once. The header that was written.
  TokenHeader finish();

 private:
  class Part;

  std::string path_;
  TokenHeader header_;
  std::unique_ptr<Part> train_, validation_;
};

}  // namespace tessera::train
