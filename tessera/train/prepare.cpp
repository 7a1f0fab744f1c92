#include "tessera/train/prepare.h"

#include <filesystem>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/train/failure.h"
#include "tessera/train/text_source.h"
#include "tessera/train/token_file_writer.h"

namespace tessera::train {
namespace {

using Start = TextPiece::Start;
constexpr size_t kBatchBytes = size_t{8} << 20;  // encoded at once

void check(const PrepareOptions& o) {
  tessera::require<InvalidArgument>(!o.inputs.empty(), [] {
    return str("give a text to prepare: a file, a folder or a .jsonl file.");
  });
  tessera::require<InvalidArgument>(!o.output.empty(), [] {
    return str("give the token file to write: -o FILE.");
  });
  tessera::require<InvalidArgument>(o.validation >= 0 && o.validation < 1, [&] {
    return str("--validation is ", o.validation,
               "; give a share of the text, from 0 to less than 1.");
  });
  tessera::require<InvalidArgument>(
      o.validation == 0 || o.validation_inputs.empty(),
      [] { return str("give --validation or --validation-files, not both."); });
}

TextSource open_source(const std::vector<std::string>& paths,
                       const PrepareOptions& options) {
  TextSource source(paths, {.field = options.field, .exclude = options.output});
  for (const std::string& file : source.files()) {
    std::error_code error;
    const bool same = std::filesystem::equivalent(file, options.output, error);
    tessera::require<InvalidArgument>(!same, [&] {
      return str("the output '", options.output,
                 "' is one of the inputs; give another -o.");
    });
  }
  return source;
}

/// The first `size` bytes of a piece; the rest stays in it.
TextPiece split_off(TextPiece& piece, size_t size) {
  TextPiece head = piece;
  head.text.resize(size);
  head.num_bytes = static_cast<int64_t>(size);
  piece.text.erase(0, size);
  piece.position += head.num_bytes;
  piece.num_bytes -= head.num_bytes;
  piece.start = Start::middle;
  return head;
}

/// Where a piece is cut so that the rest begins with a line, at `at` or behind.
/// Its end when no line follows.
size_t line_start(const std::string& text, size_t at) {
  if (at == 0 || text[at - 1] == '\n') return at;
  const size_t end = text.find('\n', at);
  if (end != text.npos) return end + 1;
  // One line alone: at a character, then.
  while (at < text.size() && (text[at] & 0xc0) == 0x80) ++at;
  return at;
}

/// Encodes pieces many at a time and puts separators between documents.
class Encoder {
 public:
  Encoder(const TextCodec& codec, const PrepareOptions& options)
      : codec_(codec),
        options_(options),
        writer_(options.output, {.vocab = codec.vocab(),
                                 .separator = separator(codec, options),
                                 .tokenizer = codec.tokenizer()}) {}

  void add(Split split, TextPiece piece) {
    summary_.num_bytes += piece.num_bytes;
    if (piece.start == Start::document) ++summary_.num_documents;
    waiting_bytes_ += piece.text.size();
    texts_.push_back(std::move(piece.text));
    places_.push_back({split, piece.start, piece.num_bytes});
    if (waiting_bytes_ >= kBatchBytes) flush();
  }

  PrepareSummary finish() {
    flush();
    check_lengths();
    summary_.header = writer_.finish();
    return summary_;
  }

 private:
  struct Place {
    Split split;
    Start start;
    int64_t num_bytes;
  };

  static int64_t separator(const TextCodec& codec,
                           const PrepareOptions& options) {
    if (options.separator == Separator::none) return -1;
    return codec.separator();
  }

  void flush() {
    const EncodedTexts encoded = codec_.encode(texts_);
    size_t begin = 0;
    for (size_t i = 0; i < texts_.size(); ++i) {
      const std::span all(encoded.tokens);
      write(places_[i], all.subspan(begin, encoded.ends[i] - begin));
      begin = encoded.ends[i];
      if (options_.on_bytes) options_.on_bytes(places_[i].num_bytes);
    }
    texts_.clear();
    places_.clear();
    waiting_bytes_ = 0;
  }

  void write(const Place& place, std::span<const uint32_t> tokens) {
    uint64_t& count = counts_[place.split == Split::train ? 0 : 1];
    if (place.start == Start::document && count > 0 &&
        options_.separator != Separator::none) {
      const uint32_t token = codec_.separator();
      writer_.append(place.split, {&token, 1});
    }
    writer_.append(place.split, tokens);
    count += tokens.size();
  }

  void check_lengths() const {
    require(counts_[0] > 0, ExitCode::short_data, [&] {
      return str("there is no text to train on in ", summary_.num_bytes,
                 " bytes of input.");
    });
    const bool wanted =
        options_.validation > 0 || !options_.validation_inputs.empty();
    require(!wanted || counts_[1] > 0, ExitCode::short_data, [] {
      return str(
          "there is no text left for the validation split; give more text, or "
          "a larger --validation.");
    });
  }

  const TextCodec& codec_;
  const PrepareOptions& options_;
  TokenFileWriter writer_;
  PrepareSummary summary_;
  std::vector<std::string> texts_;
  std::vector<Place> places_;
  size_t waiting_bytes_ = 0;
  uint64_t counts_[2] = {0, 0};  // tokens of train and validation
};

/// `boundary`: the byte of the text where the validation split begins.
void add_split(Encoder& encoder, TextPiece piece, int64_t boundary) {
  const int64_t before = boundary - piece.position;
  if (before <= 0) {
    encoder.add(Split::validation, std::move(piece));
    return;
  }
  const bool inside = piece.cut == TextPiece::Cut::anywhere &&
                      before < static_cast<int64_t>(piece.text.size());
  const size_t at =
      inside ? line_start(piece.text, static_cast<size_t>(before)) : 0;
  if (inside && at < piece.text.size()) {
    encoder.add(Split::train, split_off(piece, at));
    encoder.add(Split::validation, std::move(piece));
  } else {
    encoder.add(Split::train, std::move(piece));
  }
}

}  // namespace

int64_t num_input_bytes(const PrepareOptions& options) {
  check(options);
  return open_source(options.inputs, options).num_bytes() +
         open_source(options.validation_inputs, options).num_bytes();
}

PrepareSummary prepare(const TextCodec& codec, const PrepareOptions& options) {
  check(options);
  auto source = open_source(options.inputs, options);
  auto held_out = open_source(options.validation_inputs, options);
  const auto boundary = static_cast<int64_t>(
      (1 - options.validation) * static_cast<double>(source.num_bytes()));
  const bool shared = options.validation > 0;
  Encoder encoder(codec, options);
  for (TextPiece piece; source.next(piece);) {
    if (shared) {
      add_split(encoder, std::move(piece), boundary);
    } else {
      encoder.add(Split::train, std::move(piece));
    }
  }
  for (TextPiece piece; held_out.next(piece);) {
    encoder.add(Split::validation, std::move(piece));
  }
  return encoder.finish();
}

}  // namespace tessera::train
