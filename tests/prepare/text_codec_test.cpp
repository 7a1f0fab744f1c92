#include "tessera/train/text_codec.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tessera/base/error.h"
#include "tessera/base/progress_bar.h"
#include "tessera/base/run_program.h"
#include "tests/support/temporary_folder.h"

namespace tessera::train {
namespace {

using testing::message_of;
using testing::read_bytes;
using testing::TemporaryFolder;
using testing::write_bytes;

std::string round_trip(const TextCodec& codec, const std::string& text) {
  const auto tokens = codec.encode(text);
  return codec.decode(std::vector<int64_t>(tokens.begin(), tokens.end()));
}

TEST(BytesCodec, GivesEveryByteBack) {
  const auto codec = make_text_codec({});
  std::string text(255, ' ');
  std::iota(text.begin(), text.end(), '\1');
  EXPECT_EQ(codec->encode(text).size(), text.size());
  EXPECT_EQ(round_trip(*codec, text), text);
  EXPECT_EQ(codec->vocab(), 256u);
  EXPECT_EQ(codec->tokenizer().name, "bytes");
}

TEST(BytesCodec, ASeparatorIsALineEnd) {
  const auto codec = make_text_codec({});
  const std::vector<int64_t> tokens = {'a', codec->separator(), 'b'};
  EXPECT_EQ(codec->decode(tokens), "a\nb");
}

TEST(BytesCodec, TellsWhereTextsEnd) {
  const auto codec = make_text_codec({});
  const std::vector<std::string> texts = {"ab", "", "c"};
  const auto encoded = codec->encode(texts);
  EXPECT_EQ(encoded.tokens, (std::vector<uint32_t>{'a', 'b', 'c'}));
  EXPECT_EQ(encoded.ends, (std::vector<size_t>{2, 2, 3}));
}

TEST(BytesCodec, RefusesTokensThatAreNoBytes) {
  const auto codec = make_text_codec({});
  for (const int64_t token : {-1, 256}) {
    EXPECT_THROW((void)codec->decode(std::vector{token}), InvalidArgument);
  }
}

TEST(TextCodec, AnUnknownTokenizerIsNamed) {
  EXPECT_NE(message_of<InvalidArgument>([] {
              (void)make_text_codec({.name = "wordpiece", .model = ""});
            }).find("'wordpiece'"),
            std::string::npos);
}

/// Where SentencePiece's programs are not there, the tests check that this is
/// said.
class SentencePiece : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    present_ = run_program({"spm_train", "--version"}).code == 0;
    if (!present_) return;
    const TemporaryFolder folder;
    std::string text;
    for (int i = 0; i < 60; ++i) {
      text +=
          "The quick brown fox jumps over  the lazy dog.\n"
          "  Indented, with a\ttab; \xc3\x84pfel und Birnen.\n";
    }
    write_bytes(folder / "text", text);
    model_ = train_sentencepiece(folder / "text", {.vocab = 320});
  }
  void SetUp() override {
    if (present_) return;
    EXPECT_NE(message_of<InvalidArgument>([] {
                (void)make_text_codec({"sentencepiece", "x"});
              }).find("apt-get install"),
              std::string::npos);
    GTEST_SKIP() << "SentencePiece's programs are missing";
  }
  static std::unique_ptr<TextCodec> codec() {
    return make_text_codec({"sentencepiece", model_});
  }

  static inline bool present_ = false;
  static inline std::string model_;
};

TEST_F(SentencePiece, GivesEveryTextBack) {
  const auto codec = SentencePiece::codec();
  EXPECT_EQ(codec->vocab(), 320u);
  for (const char* text :
       {"The quick brown fox", "", "two\nlines", "ends with a line\n", "\n\n",
        "  leading,  inner and trailing  ", "tab\tand \xe6\x97\xa5\xe6\x9c\xac",
        "a\n  b\n\n    c"}) {
    EXPECT_EQ(round_trip(*codec, text), text);
  }
}

TEST_F(SentencePiece, NeedsFewerTokensThanBytes) {
  const std::string text = "The quick brown fox jumps over the lazy dog.";
  EXPECT_LT(codec()->encode(text).size(), text.size() * 3 / 4);
}

TEST_F(SentencePiece, ManyTextsAreEncodedAsEachAlone) {
  const auto codec = SentencePiece::codec();
  const std::vector<std::string> texts = {"one\ntwo", "", "\n", "three\n"};
  const auto all = codec->encode(texts);
  size_t begin = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::vector<uint32_t> part(
        all.tokens.begin() + static_cast<int64_t>(begin),
        all.tokens.begin() + static_cast<int64_t>(all.ends[i]));
    EXPECT_EQ(part, codec->encode(texts[i])) << i;
    begin = all.ends[i];
  }
  EXPECT_EQ(begin, all.tokens.size());
}

TEST_F(SentencePiece, TheSeparatorIsAPieceOfItsOwn) {
  const auto codec = SentencePiece::codec();
  std::vector<int64_t> tokens;
  for (const uint32_t token : codec->encode(std::string("one"))) {
    tokens.push_back(token);
  }
  tokens.push_back(codec->separator());
  for (const uint32_t token : codec->encode(std::string("two"))) {
    tokens.push_back(token);
  }
  EXPECT_EQ(codec->decode(tokens), "one\ntwo");
}

TEST_F(SentencePiece, TheModelTravelsInTheTokenizer) {
  const auto first = codec();
  const auto second = make_text_codec(first->tokenizer());
  const std::string text = "The lazy dog.";
  EXPECT_EQ(first->encode(text), second->encode(text));
}

TEST_F(SentencePiece, RefusesTokensOutsideTheVocabulary) {
  EXPECT_THROW((void)codec()->decode(std::vector<int64_t>{320}),
               InvalidArgument);
  EXPECT_THROW((void)codec()->decode(std::vector<int64_t>{-1}),
               InvalidArgument);
}

TEST_F(SentencePiece, AModelThatIsNoneIsRefusedWithTheProgramsWords) {
  const std::string error = message_of<InvalidArgument>([] {
    (void)make_text_codec({"sentencepiece", "this is no model"});
  });
  EXPECT_NE(error.find("spm_export_vocab failed"), std::string::npos) << error;
}

TEST_F(SentencePiece, AVocabularyThatCannotBeMadeIsRefused) {
  const TemporaryFolder folder;
  write_bytes(folder / "text", "short\n");
  const std::string error = message_of<InvalidArgument>(
      [&] { (void)train_sentencepiece(folder / "text", {.vocab = 9999}); });
  EXPECT_NE(error.find("spm_train failed"), std::string::npos) << error;
  EXPECT_NE(error.find("Vocabulary size too high"), std::string::npos) << error;
}

TEST(RunProgram, GivesOutputCodeAndTheEndOfItsErrors) {
  const TemporaryFolder folder;
  write_bytes(folder / "in", "hello");
  const auto result =
      run_program({"sh", "-c", "cat; echo first >&2; echo last >&2; exit 3"},
                  {.input = folder / "in", .output = folder / "out"});
  EXPECT_EQ(result.code, 3);
  EXPECT_EQ(result.error, "first\nlast");
  EXPECT_EQ(read_bytes(folder / "out"), "hello");
}

TEST(RunProgram, TellsASignalAndAMissingProgram) {
  EXPECT_EQ(run_program({"sh", "-c", "kill -9 $$"}).code, 128 + 9);
  const auto missing = run_program({"no-such-program-at-all"});
  EXPECT_EQ(missing.code, 127);
  EXPECT_NE(missing.error.find("was not found"), std::string::npos);
}

TEST(RunProgram, AMissingInputIsAnError) {
  EXPECT_THROW((void)run_program({"cat"}, {.input = "/no/such/file"}),
               InvalidState);
  EXPECT_THROW((void)run_program({}), InvalidArgument);
}

TEST(RunProgram, TheProgramHasTheUsualSignals) {
  const auto result = run_program({"sh", "-c", "yes | head -1"});
  EXPECT_EQ(result.code, 0) << result.error;
}

TEST(ProgressBar, ShowsShareRateAndTime) {
  EXPECT_EQ(format_progress("preparing", 0.45, 1.2e6, 31),
            "preparing [#########...........]  45%  1.2 MB/s  0:00:31 left");
  EXPECT_EQ(format_progress("x", 2, 0, -1),
            "x [####################] 100%  0.0 MB/s  0:00:00 left");
  EXPECT_EQ(format_progress("x", 0, 0, 1.0 / 0.0),
            "x [....................]   0%  0.0 MB/s  0:00:00 left");
}

TEST(ProgressBar, WritesNothingWhereThereIsNoTerminal) {
  ::testing::internal::CaptureStderr();
  {
    ProgressBar bar("x", 10);
    bar.advance(5);
    bar.finish();
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace tessera::train
