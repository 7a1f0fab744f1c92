#include "tessera/comm/error_file.h"

#include <atomic>
#include <chrono>
#include <fstream>
#include <string>

#include "tessera/base/environment.h"
#include "tessera/base/error.h"

namespace tessera {
namespace {

// The text of a JSON string; bytes that JSON does not allow become '?'.
std::string json_text(std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += {'\\', c};
    } else if (c == '\n') {
      result += "\\n";
    } else if (byte < 0x20) {
      result += str("\\u00", kHex[byte / 16], kHex[byte % 16]);
    } else {
      result += byte < 0x80 ? c : '?';
    }
  }
  return result;
}

std::string seconds_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::to_string(
      std::chrono::duration_cast<std::chrono::seconds>(now).count());
}

void write(const std::string& path, std::string_view type,
           std::string_view text) {
  std::ofstream file(path);
  file << R"({"message": {"message": ")" << json_text(type)
       << (type.empty() ? "" : ": ") << json_text(text)
       << R"(", "extraInfo": {"py_callstack": "", "timestamp": ")"
       << seconds_now() << "\"}}}\n";
}

}  // namespace

void write_error_file(std::string_view type, std::string_view text) noexcept {
  static std::atomic_flag written;
  try {
    const auto path = environment::error_file();
    if (path && !written.test_and_set()) write(*path, type, text);
  } catch (...) {
    // The file is a courtesy; the error itself is reported elsewhere too.
  }
}

}  // namespace tessera
