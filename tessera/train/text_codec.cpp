#include "tessera/train/text_codec.h"

#include "tessera/base/error.h"
#include "tessera/train/sentencepiece.h"

namespace tessera::train {
namespace {

constexpr uint64_t kBytesVocab = 256;

class BytesCodec : public TextCodec {
 public:
  [[nodiscard]] uint64_t vocab() const override { return kBytesVocab; }
  [[nodiscard]] uint32_t separator() const override { return 0; }
  [[nodiscard]] Tokenizer tokenizer() const override { return {"bytes", ""}; }

  [[nodiscard]] EncodedTexts encode(
      std::span<const std::string> texts) const override {
    EncodedTexts encoded;
    for (const std::string& text : texts) {
      for (const char byte : text) {
        encoded.tokens.push_back(static_cast<unsigned char>(byte));
      }
      encoded.ends.push_back(encoded.tokens.size());
    }
    return encoded;
  }

  [[nodiscard]] std::string decode(
      std::span<const int64_t> tokens) const override {
    std::string text;
    for (const int64_t token : tokens) {
      require<InvalidArgument>(token >= 0 && token < 256, [&] {
        return str("token ", token, " is no byte.");
      });
      text += token == 0 ? '\n' : static_cast<char>(token);
    }
    return text;
  }
};

}  // namespace

std::unique_ptr<TextCodec> make_text_codec(const Tokenizer& tokenizer) {
  if (tokenizer.name == "bytes") return std::make_unique<BytesCodec>();
  require<InvalidArgument>(tokenizer.name == "sentencepiece", [&] {
    return str("there is no tokenizer '", tokenizer.name,
               "'; there are bytes and sentencepiece.");
  });
  return std::make_unique<SentencePieceCodec>(tokenizer.model);
}

}  // namespace tessera::train
