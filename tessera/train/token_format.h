// The bytes of a token file. All numbers are little endian.
//
//      0  "TESSERA\n"
//      8  u32 version, u32 CRC-32C of everything from byte 16 to the tokens
//     16  u64 where the tokens begin, a multiple of 4096
//     24  u32 bytes of a token (1, 2 or 4), u32 CRC-32C of all tokens
//     32  u64 vocabulary, u64 training tokens, u64 validation tokens
//     56  i64 the token between documents, or -1
//     64  u32 length of the tokenizer's name, u32 length of its model
//     72  name, model (of SentencePiece; none for bytes), zeros
//      .  training tokens, then validation tokens; nothing after them
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tessera::train {

/// What made the tokens, and turns them back into text.
struct Tokenizer {
  std::string name = "bytes";  // or "sentencepiece"
  std::string model = {};      // the bytes of its file

  bool operator==(const Tokenizer&) const = default;
};

struct TokenHeader {
  uint64_t data_offset = 0;
  uint32_t token_bytes = 1;
  uint32_t data_checksum = 0;
  uint64_t vocab = 0;
  uint64_t num_train = 0;
  uint64_t num_validation = 0;
  int64_t separator = -1;
  Tokenizer tokenizer = {};

  [[nodiscard]] uint64_t file_size() const {
    return data_offset + (num_train + num_validation) * token_bytes;
  }
  bool operator==(const TokenHeader&) const = default;
};

inline constexpr size_t kTokenFixedHeader = 72;  // bytes before the name

/// The fewest bytes that hold every token of a vocabulary: 1, 2 or 4.
/// Errors: InvalidArgument for a vocabulary below 1 or above 2^32.
[[nodiscard]] uint32_t token_bytes_of(uint64_t vocab);

/// A header for these, with its data_offset and token_bytes set.
[[nodiscard]] TokenHeader make_token_header(uint64_t vocab, int64_t separator,
                                            Tokenizer tokenizer);

/// All bytes before the tokens: data_offset of them.
[[nodiscard]] std::vector<std::byte> pack(const TokenHeader& header);

/// From the bytes of a whole file. path: for messages.
/// Errors: Failure with ExitCode::damaged_data when it is not a token file, of
/// another version, cut, longer than it says, or its header was altered.
[[nodiscard]] TokenHeader unpack_token_header(std::span<const std::byte> file,
                                              const std::string& path);

}  // namespace tessera::train
