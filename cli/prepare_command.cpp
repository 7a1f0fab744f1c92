// `tessera prepare`: options and help; the work is in tessera/train/prepare.
#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>

#include "cli/command.h"
#include "tessera/base/error.h"
#include "tessera/base/progress_bar.h"
#include "tessera/train/failure.h"
#include "tessera/train/prepare.h"
#include "tessera/train/progress_line.h"
#include "tessera/train/sentencepiece.h"
#include "tessera/train/text_source.h"

namespace tessera::cli {
namespace {

constexpr const char* kFooter = R"(
Examples:
  tessera prepare novels.txt --validation 0.05 -o novels.tok
each byte of the text is a token; the last 5 % are kept for validation.
  tessera prepare texts/ --train-sentencepiece 8192 -o texts.tok
  tessera prepare crawl.jsonl --field content --sentencepiece llama.model -o crawl.tok

An input is a text file, a folder of them, or a .jsonl file with one document a
line. SentencePiece needs its own programs (Debian: apt-get install
sentencepiece). More in docs/train_data.md.)";

struct PrepareFlags {
  train::PrepareOptions options;
  std::string model_path;    // of SentencePiece
  uint64_t train_vocab = 0;  // of a SentencePiece model to train; 0: none
  bool no_separator = false;
};

std::string model_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  train::require(!bytes.empty(), train::ExitCode::missing_data, [&] {
    return str("the SentencePiece model '", path, "' cannot be read.");
  });
  return bytes;
}

/// The beginning of the text, as one file: more would teach it little.
void write_sample(const train::PrepareOptions& options,
                  const std::string& path) {
  constexpr int64_t kEnoughBytes = 64'000'000;
  train::TextSource source(options.inputs,
                           {.field = options.field, .exclude = options.output});
  std::ofstream file(path, std::ios::binary);
  train::TextPiece piece;
  int64_t taken = 0;
  while (taken < kEnoughBytes && source.next(piece)) {
    file << piece.text << (piece.text.ends_with('\n') ? "" : "\n");
    taken += static_cast<int64_t>(piece.text.size());
  }
  train::require(file.flush().good(), train::ExitCode::cannot_write, [&] {
    return str("'", path, "' cannot be written; is the disk full?");
  });
}

std::string trained_model(const PrepareFlags& flags) {
  std::cerr << "training a SentencePiece model of " << flags.train_vocab
            << " pieces\n";
  const train::ScratchFolder folder;
  write_sample(flags.options, folder.file("sample"));
  return train::train_sentencepiece(folder.file("sample"),
                                    {.vocab = flags.train_vocab});
}

train::Tokenizer tokenizer_of(const PrepareFlags& flags) {
  require(flags.model_path.empty() || flags.train_vocab == 0, [] {
    return str("give --sentencepiece or --train-sentencepiece, not both.");
  });
  if (!flags.model_path.empty()) {
    return {"sentencepiece", model_bytes(flags.model_path)};
  }
  if (flags.train_vocab > 0) return {"sentencepiece", trained_model(flags)};
  return {"bytes", ""};
}

void report(const train::PrepareSummary& summary, const std::string& output) {
  const train::TokenHeader& header = summary.header;
  const auto commas = [](uint64_t number) {
    return train::with_commas(static_cast<int64_t>(number));
  };
  std::cout << output << ": " << commas(header.num_train)
            << " tokens to train on, " << commas(header.num_validation)
            << " for validation, of " << commas(summary.num_documents)
            << (summary.num_documents == 1 ? " document (" : " documents (")
            << train::format_bytes(static_cast<double>(summary.num_bytes))
            << " of text); vocabulary " << commas(header.vocab) << " ("
            << header.tokenizer.name << ")\n";
}

int run_prepare(PrepareFlags flags) {
  if (flags.no_separator) flags.options.separator = train::Separator::none;
  const int64_t num_bytes = train::num_input_bytes(flags.options);
  const auto codec = train::make_text_codec(tokenizer_of(flags));
  ProgressBar bar("preparing", num_bytes);
  flags.options.on_bytes = [&](int64_t bytes) { bar.advance(bytes); };
  const auto summary = train::prepare(*codec, flags.options);
  bar.finish();
  report(summary, flags.options.output);
  return 0;
}

void add_tokenizer_options(CLI::App& app, PrepareFlags& flags) {
  app.add_option("--sentencepiece", flags.model_path,
                 "Tokens of this SentencePiece model, instead of bytes")
      ->type_name("MODEL");
  app.add_option("--train-sentencepiece", flags.train_vocab,
                 "Train a SentencePiece model of N pieces on the text first")
      ->type_name("N");
}

}  // namespace

std::function<int()> add_prepare_command(CLI::App& app,
                                         const WordsAfterDashes& words) {
  const auto flags = std::make_shared<PrepareFlags>();
  train::PrepareOptions& options = flags->options;
  app.footer(kFooter);
  app.add_option("input", options.inputs, "Text files, folders, .jsonl files")
      ->type_name("INPUT");
  app.add_option("-o,--output", options.output, "Token file to write")
      ->type_name("FILE");
  app.add_option("--field", options.field,
                 "Field of .jsonl lines that holds the text")
      ->type_name("NAME")
      ->capture_default_str();
  app.add_option("--validation", options.validation,
                 "Share of the text, its end, that is not trained on")
      ->type_name("SHARE")
      ->capture_default_str();
  app.add_option("--validation-files", options.validation_inputs,
                 "Text that is not trained on, instead of a share; may be "
                 "given several times")
      ->type_name("INPUT")
      ->allow_extra_args(false);
  add_tokenizer_options(app, *flags);
  app.add_flag("--no-separator", flags->no_separator,
               "Put no token between documents");
  return [flags, words] {
    refuse_words_after_dashes("prepare", words);
    return run_prepare(*flags);
  };
}

}  // namespace tessera::cli
