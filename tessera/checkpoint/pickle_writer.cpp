#include <bit>
#include <cstring>
#include <unordered_map>

#include "tessera/base/error.h"
#include "tessera/checkpoint/pickle.h"
#include "tessera/checkpoint/utf8.h"

namespace tessera::checkpoint {
namespace {

template <class T>
std::string little(T value) {
  static_assert(std::endian::native == std::endian::little);
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

}  // namespace

struct PickleWriter::Memory {
  std::unordered_map<std::string, uint32_t> numbers;
};

PickleWriter::PickleWriter(Memo memo) : out_("\x80\x02") {
  if (memo == Memo::strings) memory_ = std::make_unique<Memory>();
}
PickleWriter::~PickleWriter() = default;
PickleWriter::PickleWriter(PickleWriter&&) noexcept = default;

PickleWriter& PickleWriter::raw(std::string_view bytes) {
  out_ += bytes;
  return *this;
}

PickleWriter& PickleWriter::integer(int64_t value) {
  if (value >= 0 && value < 1 << 8) {
    return raw("K").raw(little(static_cast<uint8_t>(value)));
  }
  if (value >= 0 && value < 1 << 16) {
    return raw("M").raw(little(static_cast<uint16_t>(value)));
  }
  if (value == static_cast<int32_t>(value)) {
    return raw("J").raw(little(static_cast<int32_t>(value)));
  }
  return raw("\x8a\x08").raw(little(value));
}

PickleWriter& PickleWriter::big_integer(std::string_view bytes) {
  if (bytes.size() < 256) {
    raw("\x8a").raw(little(static_cast<uint8_t>(bytes.size())));
  } else {
    raw("\x8b").raw(little(static_cast<uint32_t>(bytes.size())));
  }
  return raw(bytes);
}

PickleWriter& PickleWriter::real(double value) {
  std::string bytes = little(value);
  return raw("G").raw(std::string(bytes.rbegin(), bytes.rend()));
}

PickleWriter& PickleWriter::text(std::string_view value) {
  require<InvalidArgument>(is_valid_utf8(value) && value.size() < UINT32_MAX,
                           [&] {
                             return str("checkpoint: the text '", value,
                                        "' is not valid UTF-8; save it as "
                                        "bytes.");
                           });
  const std::string key = "X" + std::string(memory_ ? value : "");
  if (recall(key)) return *this;
  raw("X").raw(little(static_cast<uint32_t>(value.size()))).raw(value);
  remember(key);
  return *this;
}

// As Python 2 wrote it and every Python reads it: each byte a code point.
PickleWriter& PickleWriter::bytes(std::string_view value) {
  // Also of none: torch.load(weights_only=True) knows no other way.
  std::string latin;
  for (const char byte : value) {
    const auto code = static_cast<uint8_t>(byte);
    if (code < 0x80) {
      latin += byte;
    } else {
      latin += static_cast<char>(0xc0 | code >> 6);
      latin += static_cast<char>(0x80 | (code & 0x3f));
    }
  }
  global("_codecs", "encode").mark().text(latin).text("latin1");
  return tuple().reduce();
}

PickleWriter& PickleWriter::global(std::string_view module,
                                   std::string_view name) {
  const std::string key = str("c", module, "\n", name, "\n");
  if (recall(key)) return *this;
  raw(key);
  remember(key);
  return *this;
}

bool PickleWriter::recall(const std::string& key) {
  if (memory_ == nullptr) return false;
  const auto found = memory_->numbers.find(key);
  if (found == memory_->numbers.end()) return false;
  if (found->second < 256) {
    raw("h").raw(little(static_cast<uint8_t>(found->second)));
  } else {
    raw("j").raw(little(found->second));
  }
  return true;
}

void PickleWriter::remember(const std::string& key) {
  if (memory_ == nullptr) return;
  const auto number = static_cast<uint32_t>(memory_->numbers.size());
  memory_->numbers.emplace(key, number);
  if (number < 256) {
    raw("q").raw(little(static_cast<uint8_t>(number)));
  } else {
    raw("r").raw(little(number));
  }
}

std::string PickleWriter::finish() {
  raw(".");
  return std::move(out_);
}

}  // namespace tessera::checkpoint
