#include "tessera/train/sentencepiece.h"

#include <stdlib.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tessera/base/error.h"
#include "tessera/base/run_program.h"

namespace tessera::train {
namespace {

constexpr const char* kLineEnd = "<0x0A>";
constexpr int kNotFound = 127;

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size())).flush();
  require<InvalidArgument>(file.good(), [&] {
    return str("'", path, "' cannot be written; is the disk full?");
  });
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  require<InvalidArgument>(file.is_open() && !file.bad(),
                           [&] { return str("'", path, "' cannot be read."); });
  return text.str();
}

/// The last line that tells something.
std::string reason_in(const std::string& errors) {
  constexpr std::string_view kFarewell = "Program terminated";
  std::string reason = "no message";
  std::istringstream lines(errors);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && !line.starts_with(kFarewell)) reason = line;
  }
  return reason;
}

void run(const std::vector<std::string>& argv, const ProgramFiles& files = {}) {
  const ProgramResult result = run_program(argv, files);
  require<InvalidArgument>(result.code != kNotFound, [&] {
    return str("the program ", argv[0],
               " is missing; install SentencePiece (Debian: apt-get install "
               "sentencepiece).");
  });
  require<InvalidArgument>(result.code == 0, [&] {
    return str(argv[0], " failed with code ", result.code, ": ",
               reason_in(result.error));
  });
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t start = 0;;) {
    const size_t end = text.find('\n', start);
    lines.push_back(text.substr(start, end - start));
    if (end == text.npos) return lines;
    start = end + 1;
  }
}

std::vector<std::string> export_pieces(const std::string& model_option,
                                       const std::string& path) {
  run({"spm_export_vocab", model_option, "--output=" + path});
  std::vector<std::string> pieces;
  for (const std::string& line : lines_of(read_file(path))) {
    if (!line.empty()) pieces.push_back(line.substr(0, line.find('\t')));
  }
  return pieces;
}

void append_numbers(const std::string& line, std::vector<uint32_t>& tokens) {
  const char* at = line.data();
  const char* const end = at + line.size();
  while (at < end) {
    uint32_t token = 0;
    const auto [next, error] = std::from_chars(at, end, token);
    require<InvalidArgument>(error == std::errc(), [&] {
      return str("spm_encode wrote '", line, "', which are not numbers.");
    });
    tokens.push_back(token);
    at = next;
    while (at < end && *at == ' ') ++at;
  }
}

}  // namespace

ScratchFolder::ScratchFolder()
    : path_((std::filesystem::temp_directory_path() / "tessera-text-XXXXXX")
                .string()) {
  require<InvalidState>(::mkdtemp(path_.data()) != nullptr, [&] {
    return str("no temporary folder '", path_, "' can be made.");
  });
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

SentencePieceCodec::SentencePieceCodec(const std::string& model)
    : model_(model) {
  write_file(folder_.file("model"), model_);
  pieces_ = export_pieces(model_option(), folder_.file("vocab"));
  line_end_ = id_of(kLineEnd);
  const bool has_end = std::ranges::find(pieces_, "</s>") != pieces_.end();
  separator_ = has_end ? id_of("</s>") : id_of("<s>");
}

std::string SentencePieceCodec::model_option() const {
  return "--model=" + folder_.file("model");
}

uint32_t SentencePieceCodec::id_of(const std::string& piece) const {
  const auto found = std::ranges::find(pieces_, piece);
  require<InvalidArgument>(found != pieces_.end(), [&] {
    return str("the SentencePiece model has no piece ", piece,
               piece == kLineEnd
                   ? ", which stands for the end of a line; train it with "
                     "--byte_fallback"
                   : "",
               ".");
  });
  return static_cast<uint32_t>(found - pieces_.begin());
}

EncodedTexts SentencePieceCodec::encode(
    std::span<const std::string> texts) const {
  std::string all;
  for (const std::string& text : texts) all += text + "\n";
  const std::string input = folder_.file("text"), output = folder_.file("ids");
  write_file(input, all);
  run({"spm_encode", model_option(), "--output_format=id"},
      {.input = input, .output = output});
  const auto rows = lines_of(read_file(output));
  EncodedTexts encoded;
  size_t row = 0;
  for (const std::string& text : texts) {
    const auto num_lines = 1 + std::ranges::count(text, '\n');
    for (int64_t line = 0; line < num_lines; ++line, ++row) {
      require<InvalidArgument>(row + 1 < rows.size(), [] {
        return str("spm_encode wrote fewer lines than it read.");
      });
      if (line > 0) encoded.tokens.push_back(line_end_);
      append_numbers(rows[row], encoded.tokens);
    }
    encoded.ends.push_back(encoded.tokens.size());
  }
  return encoded;
}

std::string SentencePieceCodec::decode(std::span<const int64_t> tokens) const {
  std::string lines;
  for (const int64_t token : tokens) {
    require<InvalidArgument>(
        token >= 0 && token < static_cast<int64_t>(vocab()), [&] {
          return str("token ", token, " in a vocabulary of ", vocab(), ".");
        });
    const bool ends_line = token == line_end_ || token == separator_;
    lines += ends_line ? "\n" : str(token, " ");
  }
  const std::string input = folder_.file("out_ids");
  const std::string output = folder_.file("out_text");
  write_file(input, lines + "\n");
  run({"spm_decode", model_option(), "--input_format=id"},
      {.input = input, .output = output});
  std::string text = read_file(output);
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

std::string train_sentencepiece(const std::string& text_path,
                                const SentencePieceTraining& options) {
  const ScratchFolder folder;
  run({"spm_train", "--input=" + text_path,
       "--model_prefix=" + folder.file("new"), "--model_type=bpe",
       "--byte_fallback=true", "--character_coverage=1.0",
       "--normalization_rule_name=identity", "--remove_extra_whitespaces=false",
       "--minloglevel=1", str("--vocab_size=", options.vocab),
       str("--num_threads=", options.num_threads),
       // A longer line would be left out.
       "--max_sentence_length=1000000"});
  return read_file(folder.file("new.model"));
}

}  // namespace tessera::train
