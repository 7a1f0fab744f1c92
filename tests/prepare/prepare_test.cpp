#include "tessera/train/prepare.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "tessera/base/error.h"
#include "tessera/train/failure.h"
#include "tessera/train/text_source.h"
#include "tessera/train/token_file.h"
#include "tests/support/temporary_folder.h"

namespace tessera::train {
namespace {

using testing::TemporaryFolder;
using testing::write_bytes;

std::string text_of(const Tokens& tokens) {
  std::vector<int64_t> values(static_cast<size_t>(tokens.size()));
  tokens.read(0, values);
  return {values.begin(), values.end()};
}

struct Prepared {
  PrepareSummary summary;
  std::string train, validation;
};

/// Prepares with the bytes tokenizer; the output is x.tok in the folder.
Prepared run(const TemporaryFolder& folder, PrepareOptions options) {
  options.output = folder / "x.tok";
  for (std::string& input : options.inputs) input = folder / input;
  for (std::string& input : options.validation_inputs) input = folder / input;
  const auto codec = make_text_codec({});
  const auto summary = prepare(*codec, options);
  const auto file = TokenFile::open(options.output);
  file.verify();
  return {summary, text_of(file.tokens(Split::train)),
          text_of(file.tokens(Split::validation))};
}

std::pair<ExitCode, std::string> failure_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Failure& failure) {
    return {failure.code(), failure.what()};
  }
  return {ExitCode::done, "no failure"};
}

std::string with_zero(std::string text) {
  std::ranges::replace(text, '|', '\0');
  return text;
}

TEST(Prepare, OneFileIsItsBytes) {
  const TemporaryFolder folder;
  std::string text = "It is a truth\r\nuniversally \xc3\xa4\xff\n";
  write_bytes(folder / "a.txt", text);
  const auto done = run(folder, {.inputs = {"a.txt"}});
  EXPECT_EQ(done.train, text);
  EXPECT_EQ(done.validation, "");
  EXPECT_EQ(done.summary.num_documents, 1);
  EXPECT_EQ(done.summary.num_bytes, static_cast<int64_t>(text.size()));
  EXPECT_EQ(done.summary.header.vocab, 256u);
}

TEST(Prepare, FilesOfAFolderComeByNameWithASeparatorBetween) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "in/deep/.git");
  write_bytes(folder / "in/b.txt", "bb\n");
  write_bytes(folder / "in/a.txt", "aa\n");
  write_bytes(folder / "in/deep/c.txt", "cc\n");
  write_bytes(folder / "in/.hidden", "no");
  write_bytes(folder / "in/deep/.git/x", "no");
  write_bytes(folder / "in/empty", "");
  EXPECT_EQ(run(folder, {.inputs = {"in"}}).train, with_zero("aa\n|bb\n|cc\n"));
  EXPECT_EQ(run(folder, {.inputs = {"in"}, .separator = Separator::none}).train,
            "aa\nbb\ncc\n");
}

TEST(Prepare, ItsOwnOutputInAFolderIsNotRead) {
  const TemporaryFolder folder;
  write_bytes(folder / "a.txt", "aa\n");
  const auto codec = make_text_codec({});
  for (int i = 0; i < 2; ++i) {
    const auto summary = prepare(
        *codec, {.inputs = {folder.path()}, .output = folder / "x.tok"});
    EXPECT_EQ(summary.header.num_train, 3u);
  }
}

TEST(Prepare, AJsonlFileHasADocumentALine) {
  const TemporaryFolder folder;
  write_bytes(folder / "a.jsonl",
              "{\"text\":\"one\\ntwo\",\"id\":1}\n\n{\"text\":\"three\"}");
  const auto done = run(folder, {.inputs = {"a.jsonl"}});
  EXPECT_EQ(done.train, with_zero("one\ntwo|three"));
  EXPECT_EQ(done.summary.num_documents, 2);
  write_bytes(folder / "a.jsonl", "{\"body\":\"x\"}\n");
  EXPECT_EQ(run(folder, {.inputs = {"a.jsonl"}, .field = "body"}).train, "x");
}

TEST(Prepare, ABadJsonlLineIsNamed) {
  const TemporaryFolder folder;
  const auto failure = [&](const std::string& line) {
    write_bytes(folder / "a.jsonl", "{\"text\":\"good\"}\n" + line + "\n");
    return failure_of([&] { (void)run(folder, {.inputs = {"a.jsonl"}}); });
  };
  for (const char* line : {"nonsense", "[1]", "{\"text\":3}", "{\"other\":1}",
                           "{\"text\":\"cut"}) {
    const auto [code, message] = failure(line);
    EXPECT_EQ(code, ExitCode::damaged_data) << line;
    EXPECT_NE(message.find("a.jsonl:2: "), std::string::npos) << message;
  }
  EXPECT_NE(
      failure("{\"other\":1,\"more\":2}")
          .second.find("there is no field 'text'; the object has more, other"),
      std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder / "x.tok"));
}

TEST(Prepare, TheValidationShareIsTheEndOfTheTextFromALineOn) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 100; ++i) text += "line " + std::to_string(i) + "\n";
  write_bytes(folder / "a.txt", text);
  for (const double share : {0.01, 0.1, 0.5, 0.9, 0.99}) {
    const auto done = run(folder, {.inputs = {"a.txt"}, .validation = share});
    EXPECT_EQ(done.train + done.validation, text);
    EXPECT_TRUE(done.validation.starts_with("line ")) << share;
    EXPECT_NEAR(static_cast<double>(done.validation.size()) /
                    static_cast<double>(text.size()),
                share, 0.01);
    EXPECT_EQ(done.summary.num_documents, 1);
  }
}

TEST(Prepare, ATextOfOneLineIsCutBetweenCharacters) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 50; ++i) text += "\xe6\x97\xa5";  // three bytes each
  write_bytes(folder / "a.txt", text);
  for (double share = 0.02; share < 0.9; share += 0.013) {
    const auto done = run(folder, {.inputs = {"a.txt"}, .validation = share});
    EXPECT_EQ(done.train + done.validation, text);
    EXPECT_EQ(done.train.size() % 3, 0u) << share;
  }
}

TEST(Prepare, DocumentsOfJsonlStayWhole) {
  const TemporaryFolder folder;
  std::string lines;
  for (int i = 10; i < 30; ++i) {
    lines += "{\"text\":\"doc " + std::to_string(i) + "\"}\n";
  }
  write_bytes(folder / "a.jsonl", lines);
  const auto done = run(folder, {.inputs = {"a.jsonl"}, .validation = 0.1});
  EXPECT_EQ(done.validation, with_zero("doc 28|doc 29"));
  EXPECT_TRUE(done.train.starts_with(with_zero("doc 10|doc 11|")));
  EXPECT_TRUE(done.train.ends_with("doc 27"));
}

TEST(Prepare, ValidationFilesAreTheValidationSplit) {
  const TemporaryFolder folder;
  write_bytes(folder / "a.txt", "train");
  write_bytes(folder / "b.txt", "one");
  write_bytes(folder / "c.txt", "two");
  const auto done = run(
      folder, {.inputs = {"a.txt"}, .validation_inputs = {"b.txt", "c.txt"}});
  EXPECT_EQ(done.train, "train");
  EXPECT_EQ(done.validation, with_zero("one|two"));
}

TEST(Prepare, ALargeFileIsReadInPiecesWithoutASeam) {
  const TemporaryFolder folder;
  std::string text;
  while (text.size() < 9'500'000) {
    text += "a line of some length " + std::to_string(text.size()) + "\n";
  }
  write_bytes(folder / "a.txt", text);
  int64_t reported = 0;
  PrepareOptions options{.inputs = {"a.txt"}, .validation = 0.3};
  options.on_bytes = [&](int64_t bytes) { reported += bytes; };
  const auto done = run(folder, options);
  EXPECT_EQ(done.train + done.validation, text);
  EXPECT_EQ(reported, static_cast<int64_t>(text.size()));
  TextSource source({folder / "a.txt"}, {});
  int pieces = 0;
  for (TextPiece piece; source.next(piece); ++pieces) {
    EXPECT_TRUE(piece.text.ends_with('\n'));
  }
  EXPECT_EQ(pieces, 3);
}

TEST(Prepare, ALargeFileWithoutLinesIsCutBetweenCharacters) {
  const TemporaryFolder folder;
  std::string text = "x";
  while (text.size() < 9'000'000) text += "\xe6\x97\xa5";
  write_bytes(folder / "a.txt", text);
  TextSource source({folder / "a.txt"}, {});
  std::string all;
  for (TextPiece piece; source.next(piece);) {
    EXPECT_NE(piece.text.front() & 0xc0, 0x80);
    all += piece.text;
  }
  EXPECT_EQ(all, text);
}

TEST(Prepare, MissingAndEmptyInputsAreNamed) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "empty");
  write_bytes(folder / "nothing.txt", "");
  const auto code = [&](const char* input) {
    const auto [code, message] =
        failure_of([&] { (void)run(folder, {.inputs = {input}}); });
    if (code == ExitCode::missing_data) {
      EXPECT_NE(message.find(input), std::string::npos) << message;
    }
    return code;
  };
  EXPECT_EQ(code("none.txt"), ExitCode::missing_data);
  EXPECT_EQ(code("empty"), ExitCode::missing_data);
  EXPECT_EQ(code("nothing.txt"), ExitCode::short_data);
}

TEST(Prepare, AValidationSplitThatWouldBeEmptyIsRefused) {
  const TemporaryFolder folder;
  write_bytes(folder / "a.jsonl", "{\"text\":\"only one\"}\n");
  EXPECT_EQ(failure_of([&] {
              (void)run(folder, {.inputs = {"a.jsonl"}, .validation = 0.1});
            }).first,
            ExitCode::short_data);
}

TEST(Prepare, OptionsThatDoNotFitAreRefused) {
  const TemporaryFolder folder;
  write_bytes(folder / "a.txt", "text");
  const auto codec = make_text_codec({});
  const auto refuses = [&](const PrepareOptions& options) {
    EXPECT_THROW((void)prepare(*codec, options), InvalidArgument);
  };
  const std::string a = folder / "a.txt", out = folder / "x.tok";
  refuses({.inputs = {}, .output = out});
  refuses({.inputs = {a}, .output = ""});
  refuses({.inputs = {a}, .output = out, .validation = 1});
  refuses({.inputs = {a}, .output = out, .validation = -0.1});
  refuses({.inputs = {a},
           .output = out,
           .validation = 0.1,
           .validation_inputs = {a}});
  refuses({.inputs = {a}, .output = a});
  EXPECT_EQ(testing::read_bytes(a), "text");
}

TEST(Prepare, TellsHowManyBytesItWillRead) {
  const TemporaryFolder folder;
  write_bytes(folder / "a.txt", "12345");
  write_bytes(folder / "b.txt", "678");
  EXPECT_EQ(num_input_bytes({.inputs = {folder / "a.txt"},
                             .output = folder / "x",
                             .validation_inputs = {folder / "b.txt"}}),
            8);
}

}  // namespace
}  // namespace tessera::train
