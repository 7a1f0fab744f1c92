#include "tessera/train/token_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tessera/base/crc32c.h"
#include "tessera/base/error.h"
#include "tessera/train/failure.h"

namespace tessera::train {
namespace {

template <class T>
void widen(const std::byte* from, std::span<int64_t> into) {
  for (size_t i = 0; i < into.size(); ++i) {
    T token = 0;
    std::memcpy(&token, from + i * sizeof(T), sizeof(T));
    into[i] = token;
  }
}

MappedFile map_or_fail(const std::string& path) {
  auto file = MappedFile::open(path);
  require(file.has_value(), ExitCode::missing_data, [&] {
    return str("the token file '", path, "' cannot be read (",
               std::strerror(errno), "). tessera prepare makes one of a text.");
  });
  return std::move(*file);
}

std::string_view name_of(Split split) {
  return split == Split::train ? "training" : "validation";
}

}  // namespace

void Tokens::read(int64_t first, std::span<int64_t> into) const {
  const auto count = static_cast<int64_t>(into.size());
  tessera::require<InvalidArgument>(
      first >= 0 && first <= size_ && count <= size_ - first, [&] {
        return str(count, " tokens from ", first, " on of '", path_,
                   "' were asked for; there are ", size_, ".");
      });
  const std::byte* from = data_ + first * token_bytes_;
  if (token_bytes_ == 1) widen<uint8_t>(from, into);
  if (token_bytes_ == 2) widen<uint16_t>(from, into);
  if (token_bytes_ == 4) widen<uint32_t>(from, into);
  const auto high = std::ranges::find_if(
      into, [&](int64_t token) { return token >= vocab_; });
  require(high == into.end(), ExitCode::damaged_data, [&] {
    return str("the token file '", path_, "' has token ", *high,
               " in a vocabulary of ", vocab_,
               ": it was altered. Make it anew with tessera prepare.");
  });
}

int64_t Tokens::num_windows(int64_t seq) const {
  tessera::require<InvalidArgument>(seq >= 1, [&] {
    return str("windows of ", seq, " tokens; give 1 or more.");
  });
  return std::max<int64_t>(0, size_ - 1) / seq;
}

TokenFile TokenFile::open(const std::string& path) {
  return TokenFile(path, map_or_fail(path));
}

TokenFile::TokenFile(std::string path, MappedFile file)
    : path_(std::move(path)),
      file_(std::move(file)),
      header_(unpack_token_header(file_.bytes(), path_)),
      train_(slice(0, header_.num_train)),
      validation_(slice(header_.num_train, header_.num_validation)) {}

Tokens TokenFile::slice(uint64_t first, uint64_t count) const {
  Tokens tokens;
  tokens.data_ =
      file_.bytes().data() + header_.data_offset + first * header_.token_bytes;
  tokens.size_ = static_cast<int64_t>(count);
  tokens.token_bytes_ = header_.token_bytes;
  tokens.vocab_ = vocab();
  tokens.path_ = path_;
  return tokens;
}

void TokenFile::verify() const {
  const auto data = file_.bytes().subspan(header_.data_offset);
  require(crc32c(data) == header_.data_checksum, ExitCode::damaged_data, [&] {
    return str("the token file '", path_,
               "' was altered: its tokens do not have the checksum that they "
               "were written with. Make it anew with tessera prepare.");
  });
}

void TokenFile::require_vocab(int64_t model_vocab) const {
  require(model_vocab >= vocab(), ExitCode::small_vocabulary, [&] {
    return str("model.vocab is ", model_vocab, ", but '", path_, "' has ",
               vocab(), " different tokens; set model.vocab to ", vocab(),
               " or more.");
  });
}

void TokenFile::require_windows(Split split, int64_t seq) const {
  const int64_t have = tokens(split).size();
  require(tokens(split).num_windows(seq) >= 1, ExitCode::short_data, [&] {
    return str("'", path_, "' has ", have, " ", name_of(split),
               " tokens; one sequence of ", seq, " and its last target need ",
               seq + 1, ". Lower model.seq, or prepare more text",
               split == Split::train ? "." : " (--validation).");
  });
}

}  // namespace tessera::train
