// Text to tokens and back.
//
//   auto codec = make_text_codec(token_file.tokenizer());
//   codec->decode(tokens);                 // what `tessera generate` prints
//
// Bytes: each byte of the text is a token; byte 0 stands between documents.
// SentencePiece: through its own programs spm_encode, spm_decode,
// spm_export_vocab and spm_train; no library of it is linked. A line of text is
// a sentence; its end is the piece <0x0A>, which a model trained with
// --byte_fallback has.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/train/token_format.h"

namespace tessera::train {

/// Tokens of several texts, one after the other.
struct EncodedTexts {
  std::vector<uint32_t> tokens;
  std::vector<size_t> ends;  // where each text ends in `tokens`
};

class TextCodec {
 public:
  virtual ~TextCodec() = default;

  [[nodiscard]] virtual uint64_t vocab() const = 0;
  /// The token between documents.
  [[nodiscard]] virtual uint32_t separator() const = 0;
  /// What a token file says of it, and make_text_codec takes.
  [[nodiscard]] virtual Tokenizer tokenizer() const = 0;

  /// Many texts at once are cheaper: SentencePiece starts a program for them.
  [[nodiscard]] virtual EncodedTexts encode(
      std::span<const std::string> texts) const = 0;
  /// Separators become empty lines. A token that is none is an error.
  [[nodiscard]] virtual std::string decode(
      std::span<const int64_t> tokens) const = 0;

  /// One text.
  [[nodiscard]] std::vector<uint32_t> encode(const std::string& text) const {
    return encode(std::span(&text, 1)).tokens;
  }
};

/// Errors, also of the codec: InvalidArgument for a tokenizer of another name,
/// a token outside the vocabulary, a SentencePiece model that lacks <0x0A>, or
/// programs that are missing (Debian package sentencepiece) or fail.
[[nodiscard]] std::unique_ptr<TextCodec> make_text_codec(
    const Tokenizer& tokenizer);

struct SentencePieceTraining {
  uint64_t vocab = 8192;
  int num_threads = 2;
};

/// Trains a byte-pair model on a text file, one sentence a line, that keeps
/// every byte: white space is not joined, what has no piece falls back to
/// bytes. Returns the bytes of the model.
[[nodiscard]] std::string train_sentencepiece(
    const std::string& text_path, const SentencePieceTraining& options);

}  // namespace tessera::train
