// A token file: the text that a model is trained on, as numbers.
//
//   auto file = TokenFile::open("novels.tok");    // reads the header alone
//   file.require_vocab(config.model.vocab);
//   const Tokens& train = file.tokens(Split::train);
//   std::vector<int64_t> window(seq + 1);
//   train.read(number * seq, window);
//
// The tokens stay in the file, mapped into memory: several ranks of a machine
// share them, and a file may be larger than the memory. token_format.h has the
// bytes. A file must not be cut while it is open.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "tessera/train/mapped_file.h"
#include "tessera/train/token_format.h"

namespace tessera::train {

enum class Split { train, validation };

/// The tokens of one split. Valid as long as the TokenFile.
class Tokens {
 public:
  [[nodiscard]] int64_t size() const { return size_; }
  /// Bytes of a token: 1, 2 or 4; unsigned, little endian.
  [[nodiscard]] int64_t token_bytes() const { return token_bytes_; }
  /// size() * token_bytes() bytes.
  [[nodiscard]] const std::byte* data() const { return data_; }

  /// Fills `into` with the tokens from position `first` on.
  /// Errors: InvalidArgument outside [0, size()]; Failure (damaged_data) for a
  /// token that the vocabulary does not have.
  void read(int64_t first, std::span<int64_t> into) const;

  /// Windows of `seq` tokens that each have a target after their last token;
  /// window w begins at token w * seq.
  [[nodiscard]] int64_t num_windows(int64_t seq) const;

 private:
  friend class TokenFile;

  const std::byte* data_ = nullptr;
  int64_t size_ = 0;
  int64_t token_bytes_ = 1;
  int64_t vocab_ = 0;
  std::string path_;
};

class TokenFile {
 public:
  /// Checks the header and the length. Cost: no token is read.
  /// Errors: Failure. missing_data: no such file, or no right to read it.
  /// damaged_data: not a token file, cut, or its header altered.
  [[nodiscard]] static TokenFile open(const std::string& path);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] int64_t vocab() const {
    return static_cast<int64_t>(header_.vocab);
  }
  /// The token that stands between documents, or -1.
  [[nodiscard]] int64_t separator() const { return header_.separator; }
  [[nodiscard]] const Tokenizer& tokenizer() const { return header_.tokenizer; }
  [[nodiscard]] const TokenHeader& header() const { return header_; }
  [[nodiscard]] const Tokens& tokens(Split split) const {
    return split == Split::train ? train_ : validation_;
  }

  /// Reads all tokens (about 1 GB/s) and compares their checksum.
  /// Errors: Failure (damaged_data).
  void verify() const;

  /// Errors: Failure (small_vocabulary) when a model of this vocabulary lacks
  /// tokens of the file.
  void require_vocab(int64_t model_vocab) const;

  /// Errors: Failure (short_data) when a split has not one whole window.
  void require_windows(Split split, int64_t seq) const;

 private:
  TokenFile(std::string path, MappedFile file);
  [[nodiscard]] Tokens slice(uint64_t first, uint64_t count) const;

  std::string path_;
  MappedFile file_;
  TokenHeader header_;
  Tokens train_, validation_;
};

}  // namespace tessera::train
