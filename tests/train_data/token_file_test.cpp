#include "tessera/train/token_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <numeric>

#include "tessera/base/crc32c.h"
#include "tessera/base/error.h"
#include "tessera/train/failure.h"
#include "tessera/train/token_file_writer.h"
#include "tests/support/temporary_folder.h"

namespace tessera::train {
namespace {

using testing::read_bytes;
using testing::TemporaryFolder;
using testing::write_bytes;

std::vector<uint32_t> numbers(uint32_t count, uint32_t vocab) {
  std::vector<uint32_t> tokens(count);
  for (uint32_t i = 0; i < count; ++i) tokens[i] = (i * 7 + 3) % vocab;
  return tokens;
}

std::vector<int64_t> all_of(const Tokens& tokens) {
  std::vector<int64_t> values(static_cast<size_t>(tokens.size()));
  tokens.read(0, values);
  return values;
}

std::vector<int64_t> wide(const std::vector<uint32_t>& tokens) {
  return {tokens.begin(), tokens.end()};
}

TokenHeader write(const std::string& path, const TokenFileOptions& options,
                  const std::vector<uint32_t>& train,
                  const std::vector<uint32_t>& validation) {
  TokenFileWriter writer(path, options);
  writer.append(Split::train, train);
  writer.append(Split::validation, validation);
  return writer.finish();
}

/// What opening and reading the file says, and its exit code.
std::pair<ExitCode, std::string> trouble_with(const std::string& path) {
  try {
    const auto file = TokenFile::open(path);
    file.verify();
    (void)all_of(file.tokens(Split::train));
  } catch (const Failure& failure) {
    return {failure.code(), failure.what()};
  }
  return {ExitCode::done, "no failure"};
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(Crc32c, GivesThePublishedSums) {
  EXPECT_EQ(crc32c({}), 0u);
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xe3069283u);
  EXPECT_EQ(crc32c(bytes_of(std::string(32, '\0'))), 0x8a9136aau);
  EXPECT_EQ(crc32c(bytes_of(std::string(32, '\xff'))), 0x62a8ab43u);
}

TEST(Crc32c, IsTheSameInAnyPieces) {
  std::string text(100, ' ');
  std::iota(text.begin(), text.end(), '\0');
  const uint32_t whole = crc32c(bytes_of(text));
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    const auto bytes = bytes_of(text);
    EXPECT_EQ(crc32c(bytes.subspan(cut), crc32c(bytes.first(cut))), whole);
  }
}

TEST(TokenFile, GivesBackWhatWasWrittenAtEveryWidth) {
  const TemporaryFolder folder;
  const std::vector<std::pair<uint64_t, uint32_t>> widths = {
      {1, 1},     {256, 1},   {257, 2},
      {65536, 2}, {65537, 4}, {uint64_t{1} << 32, 4}};
  for (const auto& [vocab, token_bytes] : widths) {
    const auto most = static_cast<uint32_t>(vocab - 1);
    std::vector<uint32_t> train = numbers(100, std::min(most, 5000u) + 1);
    train.push_back(most);
    write(folder / "x", {.vocab = vocab, .separator = 0}, train, {0, most});
    const auto file = TokenFile::open(folder / "x");
    EXPECT_NO_THROW(file.verify());
    EXPECT_EQ(file.vocab(), static_cast<int64_t>(vocab));
    EXPECT_EQ(file.separator(), 0);
    EXPECT_EQ(file.tokens(Split::train).token_bytes(), token_bytes);
    EXPECT_EQ(all_of(file.tokens(Split::train)), wide(train));
    EXPECT_EQ(all_of(file.tokens(Split::validation)), wide({0, most}));
  }
}

TEST(TokenFile, KeepsTheTokenizerWithItsModel) {
  const TemporaryFolder folder;
  std::string model(100000, '\0');
  std::iota(model.begin(), model.end(), '\0');
  const Tokenizer tokenizer{.name = "sentencepiece", .model = model};
  write(folder / "x", {.vocab = 9, .tokenizer = tokenizer}, {1, 2, 3}, {});
  const auto file = TokenFile::open(folder / "x");
  EXPECT_EQ(file.tokenizer(), tokenizer);
  EXPECT_EQ(all_of(file.tokens(Split::train)), wide({1, 2, 3}));
  EXPECT_NO_THROW(file.verify());
}

TEST(TokenFile, PiecesOfBothSplitsMayComeInAnyOrder) {
  const TemporaryFolder folder;
  const auto tokens = numbers(900000, 300);  // more than the buffer holds
  TokenFileWriter writer(folder / "x", {.vocab = 300});
  const std::span<const uint32_t> all(tokens);
  for (size_t at = 0; at < all.size(); at += 90000) {
    writer.append(Split::validation, all.subspan(at, 90000));
    writer.append(Split::train, all.subspan(at, 90000));
    writer.append(Split::train, {});
  }
  EXPECT_EQ(writer.finish().num_train, tokens.size());
  const auto file = TokenFile::open(folder / "x");
  EXPECT_NO_THROW(file.verify());
  EXPECT_EQ(all_of(file.tokens(Split::train)), wide(tokens));
  EXPECT_EQ(all_of(file.tokens(Split::validation)), wide(tokens));
}

TEST(TokenFile, MayBeEmpty) {
  const TemporaryFolder folder;
  write(folder / "x", {}, {}, {});
  const auto file = TokenFile::open(folder / "x");
  EXPECT_NO_THROW(file.verify());
  EXPECT_EQ(file.tokens(Split::train).size(), 0);
  EXPECT_EQ(file.tokens(Split::train).num_windows(1), 0);
}

TEST(TokenFile, ReadsNothingOutsideASplit) {
  const TemporaryFolder folder;
  write(folder / "x", {}, {1, 2, 3}, {4, 5});
  const auto file = TokenFile::open(folder / "x");
  const Tokens& train = file.tokens(Split::train);
  std::vector<int64_t> two(2), none;
  EXPECT_NO_THROW(train.read(1, two));
  EXPECT_EQ(two, wide({2, 3}));
  EXPECT_NO_THROW(train.read(3, none));
  EXPECT_THROW(train.read(2, two), InvalidArgument);
  EXPECT_THROW(train.read(4, none), InvalidArgument);
  EXPECT_THROW(train.read(-1, two), InvalidArgument);
  EXPECT_THROW(train.read(INT64_MAX, two), InvalidArgument);
}

TEST(TokenFile, CountsWindowsThatHaveAllTargets) {
  const TemporaryFolder folder;
  for (uint32_t size = 0; size < 12; ++size) {
    write(folder / "x", {}, numbers(size, 256), {});
    const auto file = TokenFile::open(folder / "x");
    for (int64_t seq = 1; seq < 5; ++seq) {
      int64_t windows = 0;
      while ((windows + 1) * seq + 1 <= size) ++windows;
      EXPECT_EQ(file.tokens(Split::train).num_windows(seq), windows);
    }
    EXPECT_THROW((void)file.tokens(Split::train).num_windows(0),
                 InvalidArgument);
  }
}

TEST(TokenFile, AMissingFileAFolderAndAForbiddenOneAreNamed) {
  const TemporaryFolder folder;
  for (const std::string& path : {folder / "none", folder.path()}) {
    const auto [code, message] = trouble_with(path);
    EXPECT_EQ(code, ExitCode::missing_data);
    EXPECT_NE(message.find("'" + path + "'"), std::string::npos) << message;
  }
  EXPECT_NE(trouble_with(folder / "none").second.find("No such file"),
            std::string::npos);
}

TEST(TokenFile, AFileOfAnotherKindIsRefused) {
  const TemporaryFolder folder;
  for (const std::string& text :
       {std::string(), std::string("TESSER"), std::string(8192, 'x'),
        std::string("It is a truth universally acknowledged")}) {
    write_bytes(folder / "x", text);
    const auto [code, message] = trouble_with(folder / "x");
    EXPECT_EQ(code, ExitCode::damaged_data);
    EXPECT_NE(message.find("does not begin with TESSERA"), std::string::npos);
  }
}

TEST(TokenFile, AnotherVersionIsNamed) {
  const TemporaryFolder folder;
  write(folder / "x", {}, {1, 2}, {});
  std::string bytes = read_bytes(folder / "x");
  bytes[8] = 2;
  write_bytes(folder / "x", bytes);
  const auto [code, message] = trouble_with(folder / "x");
  EXPECT_EQ(code, ExitCode::damaged_data);
  EXPECT_NE(message.find("version 2"), std::string::npos) << message;
}

TEST(TokenFile, CutAnywhereItIsRefused) {
  const TemporaryFolder folder;
  write(folder / "whole", {.vocab = 300}, numbers(50, 300), numbers(9, 300));
  const std::string bytes = read_bytes(folder / "whole");
  for (size_t size = 0; size < bytes.size();
       size += size < 100 || size > 4090 ? 1 : 97) {
    write_bytes(folder / "x", bytes.substr(0, size));
    EXPECT_EQ(trouble_with(folder / "x").first, ExitCode::damaged_data) << size;
  }
  write_bytes(folder / "x", bytes + "x");
  const std::string longer = trouble_with(folder / "x").second;
  EXPECT_NE(longer.find("1 bytes too many"), std::string::npos) << longer;
  write_bytes(folder / "x", bytes.substr(0, bytes.size() - 1));
  const std::string cut = trouble_with(folder / "x").second;
  EXPECT_NE(cut.find("is cut: it has 4213 bytes of 4214"), std::string::npos)
      << cut;
}

TEST(TokenFile, AlteredInAnyByteItIsRefused) {
  const TemporaryFolder folder;
  write(folder / "whole",
        {.vocab = 300, .tokenizer = {"sentencepiece", "some model"}},
        numbers(50, 300), numbers(9, 300));
  const std::string bytes = read_bytes(folder / "whole");
  EXPECT_EQ(trouble_with(folder / "whole").first, ExitCode::done);
  for (size_t at = 0; at < bytes.size(); at += at < 100 || at > 4090 ? 1 : 97) {
    std::string altered = bytes;
    altered[at] = static_cast<char>(altered[at] ^ 0x10);
    write_bytes(folder / "x", altered);
    EXPECT_EQ(trouble_with(folder / "x").first, ExitCode::damaged_data) << at;
  }
}

TEST(TokenFile, AHeaderThatWasMadeUpIsRefused) {
  const TemporaryFolder folder;
  const auto refuses = [&](auto change) {
    TokenHeader header = make_token_header(256, -1, {});
    header.num_train = 4;
    change(header);
    const auto packed = pack(header);
    std::string bytes(reinterpret_cast<const char*>(packed.data()),
                      packed.size());
    write_bytes(folder / "x", bytes + std::string(4, '\0'));
    return trouble_with(folder / "x").first == ExitCode::damaged_data;
  };
  const auto zeros = std::string(4, '\0');
  using H = TokenHeader;
  EXPECT_FALSE(
      refuses([&](H& h) { h.data_checksum = crc32c(bytes_of(zeros)); }));
  EXPECT_TRUE(refuses([](H& h) { h.vocab = 0; }));
  EXPECT_TRUE(refuses([](H& h) { h.vocab = 257; }));
  EXPECT_TRUE(refuses([](H& h) { h.token_bytes = 3; }));
  EXPECT_TRUE(refuses([](H& h) { h.num_train = UINT64_MAX; }));
  EXPECT_TRUE(refuses([](H& h) {
    h.num_train = (uint64_t{1} << 63) + 2;
    h.num_validation = (uint64_t{1} << 63) + 2;
  }));
  EXPECT_TRUE(refuses([](H& h) { h.separator = 256; }));
  EXPECT_TRUE(refuses([](H& h) { h.separator = -2; }));
}

TEST(TokenFile, ATokenOutsideTheVocabularyIsFoundWithoutTheChecksum) {
  const TemporaryFolder folder;
  write(folder / "x", {.vocab = 100}, numbers(50, 100), {});
  std::string bytes = read_bytes(folder / "x");
  bytes.back() = '\xee';
  write_bytes(folder / "x", bytes);
  const auto file = TokenFile::open(folder / "x");
  try {
    (void)all_of(file.tokens(Split::train));
    ADD_FAILURE() << "no failure";
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code(), ExitCode::damaged_data);
    EXPECT_NE(std::string(failure.what()).find("token 238"), std::string::npos);
  }
}

TEST(TokenFile, AVocabularyTooSmallIsRefused) {
  const TemporaryFolder folder;
  write(folder / "x", {.vocab = 300}, {1, 2}, {});
  const auto file = TokenFile::open(folder / "x");
  EXPECT_NO_THROW(file.require_vocab(300));
  EXPECT_NO_THROW(file.require_vocab(512));
  try {
    file.require_vocab(299);
    ADD_FAILURE() << "no failure";
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code(), ExitCode::small_vocabulary);
    EXPECT_EQ(std::string(failure.what()),
              "model.vocab is 299, but '" + (folder / "x") +
                  "' has 300 different tokens; set model.vocab to 300 or "
                  "more.");
  }
}

TEST(TokenFile, ASequenceLongerThanTheDataIsRefused) {
  const TemporaryFolder folder;
  write(folder / "x", {}, numbers(10, 256), {1});
  const auto file = TokenFile::open(folder / "x");
  EXPECT_NO_THROW(file.require_windows(Split::train, 9));
  for (const auto& [split, seq] :
       {std::pair{Split::train, 10}, {Split::validation, 1}}) {
    try {
      file.require_windows(split, seq);
      ADD_FAILURE() << "no failure";
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.code(), ExitCode::short_data);
    }
  }
}

TEST(TokenFileWriter, LeavesTheOldFileUntilItHasFinished) {
  const TemporaryFolder folder;
  write(folder / "x", {}, {1, 2, 3}, {});
  const std::string old = read_bytes(folder / "x");
  {
    TokenFileWriter writer(folder / "x", {});
    writer.append(Split::train, numbers(9, 256));
    EXPECT_EQ(read_bytes(folder / "x"), old);
  }  // not finished
  EXPECT_EQ(read_bytes(folder / "x"), old);
  write(folder / "x", {}, {4}, {});
  EXPECT_NE(read_bytes(folder / "x"), old);
  size_t files = 0;
  for (const auto& each : std::filesystem::directory_iterator(folder.path())) {
    EXPECT_EQ(each.path().filename(), "x");
    ++files;
  }
  EXPECT_EQ(files, 1u);
}

TEST(TokenFileWriter, RefusesATokenOutsideTheVocabulary) {
  const TemporaryFolder folder;
  TokenFileWriter writer(folder / "x", {.vocab = 5});
  EXPECT_NO_THROW(writer.append(Split::train, std::vector<uint32_t>{4}));
  EXPECT_THROW(writer.append(Split::train, std::vector<uint32_t>{5}),
               InvalidArgument);
}

TEST(TokenFileWriter, FinishesOnce) {
  const TemporaryFolder folder;
  TokenFileWriter writer(folder / "x", {});
  (void)writer.finish();
  EXPECT_THROW((void)writer.finish(), InvalidState);
}

TEST(TokenFileWriter, AFolderThatIsNotThereIsNamed) {
  const TemporaryFolder folder;
  try {
    TokenFileWriter writer(folder / "none/x", {});
    ADD_FAILURE() << "no failure";
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code(), ExitCode::cannot_write);
    EXPECT_NE(std::string(failure.what()).find("No such file"),
              std::string::npos);
  }
}

TEST(TokenFileWriter, AFullDiskIsOneClearErrorAndLeavesNothing) {
  const TemporaryFolder folder;
  const pid_t child = fork();
  if (child == 0) {
    // A limit on the size of files stands for a disk that is full.
    const rlimit limit{10000, 10000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    std::signal(SIGXFSZ, SIG_IGN);
    int code = 0;
    try {
      write(folder / "x", {}, numbers(50000, 256), {});
    } catch (const Failure& failure) {
      code = static_cast<int>(failure.code());
    }
    _exit(code);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), static_cast<int>(ExitCode::cannot_write));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace tessera::train
