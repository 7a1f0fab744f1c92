// SentencePiece through its command-line programs. See text_codec.h.
#pragma once

#include <string>
#include <vector>

#include "tessera/train/text_codec.h"

namespace tessera::train {

/// A folder for the files that go to the programs; gone with the object.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  [[nodiscard]] std::string file(const std::string& name) const {
    return path_ + "/" + name;
  }

 private:
  std::string path_;
};

class SentencePieceCodec : public TextCodec {
 public:
  /// model: the bytes of a .model file.
  explicit SentencePieceCodec(const std::string& model);

  [[nodiscard]] uint64_t vocab() const override { return pieces_.size(); }
  [[nodiscard]] uint32_t separator() const override { return separator_; }
  [[nodiscard]] Tokenizer tokenizer() const override {
    return {"sentencepiece", model_};
  }
  using TextCodec::encode;
  [[nodiscard]] EncodedTexts encode(
      std::span<const std::string> texts) const override;
  [[nodiscard]] std::string decode(
      std::span<const int64_t> tokens) const override;

 private:
  [[nodiscard]] uint32_t id_of(const std::string& piece) const;
  [[nodiscard]] std::string model_option() const;

  std::string model_;
  ScratchFolder folder_;
  std::vector<std::string> pieces_;  // by token
  uint32_t line_end_ = 0;
  uint32_t separator_ = 0;
};

}  // namespace tessera::train
