#include "tessera/train/token_format.h"

#include <algorithm>
#include <cstring>

#include "tessera/base/crc32c.h"
#include "tessera/base/error.h"
#include "tessera/train/failure.h"

namespace tessera::train {
namespace {

constexpr char kMagic[] = "TESSERA\n";
constexpr size_t kMagicBytes = 8;
constexpr size_t kChecked = 16;  // where the header's checksum begins
constexpr uint32_t kVersion = 1;
constexpr uint64_t kPage = 4096;

template <class T>
void put(std::vector<std::byte>& bytes, size_t at, T number) {
  std::memcpy(bytes.data() + at, &number, sizeof number);
}

template <class T>
T number_at(std::span<const std::byte> bytes, size_t at) {
  T number = 0;
  std::memcpy(&number, bytes.data() + at, sizeof number);
  return number;
}

std::string text_at(std::span<const std::byte> bytes, size_t at, size_t size) {
  std::string text(size, '\0');
  std::memcpy(text.data(), bytes.data() + at, size);
  return text;
}

uint64_t rounded_to_page(uint64_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

uint64_t offset_after(const Tokenizer& tokenizer) {
  return rounded_to_page(kTokenFixedHeader + tokenizer.name.size() +
                         tokenizer.model.size());
}

constexpr const char* kRemedy = " Make it anew with tessera prepare.";

void require_intact(bool ok, const std::string& path, std::string_view what) {
  require(ok, ExitCode::damaged_data, [&] {
    return str("the token file '", path, "' ", what, ".", kRemedy);
  });
}

void check_start(std::span<const std::byte> file, const std::string& path) {
  require_intact(
      file.size() >= kMagicBytes && text_at(file, 0, kMagicBytes) == kMagic,
      path, "is none: it does not begin with TESSERA");
  require_intact(file.size() >= kTokenFixedHeader, path,
                 "is cut inside its header");
  const auto version = number_at<uint32_t>(file, 8);
  require_intact(version == kVersion, path,
                 str("has version ", version,
                     " of the format; this program "
                     "reads version ",
                     kVersion));
}

/// Before anything of the header but its offset is believed.
void check_checksum(std::span<const std::byte> file, const std::string& path) {
  const auto offset = number_at<uint64_t>(file, kChecked);
  require_intact(offset % kPage == 0 && offset >= kPage, path,
                 "has an altered header");
  require_intact(offset <= file.size(), path, "is cut inside its header");
  const auto checked = file.subspan(kChecked, offset - kChecked);
  require_intact(crc32c(checked) == number_at<uint32_t>(file, 12), path,
                 "has an altered header");
}

/// A header whose checksum holds was written whole, but perhaps not by us.
void check_sense(const TokenHeader& h, size_t file_size,
                 const std::string& path) {
  constexpr uint64_t kMost = uint64_t{1} << 60;
  const bool sense = h.vocab >= 1 && h.vocab <= (uint64_t{1} << 32) &&
                     h.token_bytes == token_bytes_of(h.vocab) &&
                     h.num_train <= kMost && h.num_validation <= kMost &&
                     h.separator >= -1 &&
                     h.separator < static_cast<int64_t>(h.vocab);
  require_intact(sense, path, "has numbers in its header that do not fit");
  const uint64_t expected = h.file_size();
  require_intact(file_size >= expected, path,
                 str("is cut: it has ", file_size, " bytes of ", expected));
  require_intact(file_size == expected, path,
                 str("has ", file_size - expected, " bytes too many"));
}

}  // namespace

uint32_t token_bytes_of(uint64_t vocab) {
  tessera::require<InvalidArgument>(
      vocab >= 1 && vocab <= (uint64_t{1} << 32), [&] {
        return str("a vocabulary of ", vocab, " tokens; give 1 to 2^32.");
      });
  if (vocab <= 1u << 8) return 1;
  return vocab <= 1u << 16 ? 2 : 4;
}

TokenHeader make_token_header(uint64_t vocab, int64_t separator,
                              Tokenizer tokenizer) {
  return {.data_offset = offset_after(tokenizer),
          .token_bytes = token_bytes_of(vocab),
          .vocab = vocab,
          .separator = separator,
          .tokenizer = std::move(tokenizer)};
}

std::vector<std::byte> pack(const TokenHeader& h) {
  std::vector<std::byte> bytes(h.data_offset);
  std::memcpy(bytes.data(), kMagic, kMagicBytes);
  put(bytes, 8, kVersion);
  put(bytes, 16, h.data_offset);
  put(bytes, 24, h.token_bytes);
  put(bytes, 28, h.data_checksum);
  put(bytes, 32, h.vocab);
  put(bytes, 40, h.num_train);
  put(bytes, 48, h.num_validation);
  put(bytes, 56, h.separator);
  put(bytes, 64, static_cast<uint32_t>(h.tokenizer.name.size()));
  put(bytes, 68, static_cast<uint32_t>(h.tokenizer.model.size()));
  std::byte* text = bytes.data() + kTokenFixedHeader;
  std::memcpy(text, h.tokenizer.name.data(), h.tokenizer.name.size());
  std::memcpy(text + h.tokenizer.name.size(), h.tokenizer.model.data(),
              h.tokenizer.model.size());
  put(bytes, 12, crc32c(std::span(bytes).subspan(kChecked)));
  return bytes;
}

TokenHeader unpack_token_header(std::span<const std::byte> file,
                                const std::string& path) {
  check_start(file, path);
  check_checksum(file, path);
  TokenHeader h{.data_offset = number_at<uint64_t>(file, 16),
                .token_bytes = number_at<uint32_t>(file, 24),
                .data_checksum = number_at<uint32_t>(file, 28),
                .vocab = number_at<uint64_t>(file, 32),
                .num_train = number_at<uint64_t>(file, 40),
                .num_validation = number_at<uint64_t>(file, 48),
                .separator = number_at<int64_t>(file, 56)};
  const uint64_t name = number_at<uint32_t>(file, 64);
  const uint64_t model = number_at<uint32_t>(file, 68);
  require_intact(kTokenFixedHeader + name + model <= h.data_offset, path,
                 "has numbers in its header that do not fit");
  h.tokenizer.name = text_at(file, kTokenFixedHeader, name);
  h.tokenizer.model = text_at(file, kTokenFixedHeader + name, model);
  check_sense(h, file.size(), path);
  return h;
}

}  // namespace tessera::train
