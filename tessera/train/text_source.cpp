#include "tessera/train/text_source.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/train/failure.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kChunk = size_t{4} << 20;

bool is_hidden(const fs::path& path) {
  return path.filename().string().starts_with('.');
}

bool is_same_file(const fs::path& a, const std::string& b) {
  std::error_code error;
  return !b.empty() && fs::equivalent(a, b, error);
}

std::vector<std::string> files_of_folder(const std::string& folder,
                                         const std::string& exclude) {
  std::vector<std::string> files;
  using Walk = fs::recursive_directory_iterator;
  for (Walk it(folder), end; it != end; ++it) {
    if (is_hidden(it->path())) {
      if (it->is_directory()) it.disable_recursion_pending();
    } else if (it->is_regular_file() && !is_same_file(it->path(), exclude)) {
      files.push_back(it->path().string());
    }
  }
  std::ranges::sort(files);
  require(!files.empty(), ExitCode::missing_data,
          [&] { return str("the folder '", folder, "' has no files."); });
  return files;
}

std::vector<std::string> files_of(const std::string& path,
                                  const std::string& exclude) {
  try {
    if (fs::is_directory(path)) return files_of_folder(path, exclude);
  } catch (const fs::filesystem_error& error) {
    throw Failure(ExitCode::missing_data,
                  str("the folder '", path, "' cannot be read (",
                      error.code().message(), ")."));
  }
  require(std::ifstream(path).is_open(), ExitCode::missing_data, [&] {
    return str("'", path, "' cannot be read (", std::strerror(errno), ").");
  });
  return {path};
}

bool is_json_name(const std::string& path) {
  const auto extension = fs::path(path).extension();
  return extension == ".jsonl" || extension == ".ndjson";
}

std::string keys_of(const json& object) {
  std::string keys;
  for (const auto& [key, value] : object.items()) {
    keys += (keys.empty() ? "" : ", ") + key;
  }
  return keys.empty() ? "nothing" : keys;
}

/// Bytes of `text` up to and with its last line end; where it has none, up to
/// the start of its last character.
size_t end_of_lines(const std::string& text) {
  const size_t line = text.rfind('\n');
  if (line != text.npos) return line + 1;
  size_t end = text.size();
  const auto continues = [](char byte) { return (byte & 0xc0) == 0x80; };
  while (end > 1 && end + 3 > text.size() && continues(text[end - 1])) --end;
  return end > 1 ? end - 1 : text.size();
}

}  // namespace

TextSource::TextSource(const std::vector<std::string>& paths,
                       const TextSourceOptions& options)
    : options_(options) {
  for (const std::string& path : paths) {
    for (std::string& file : files_of(path, options.exclude)) {
      std::error_code error;
      const auto size = fs::file_size(file, error);
      num_bytes_ += error ? 0 : static_cast<int64_t>(size);
      files_.push_back(std::move(file));
    }
  }
}

bool TextSource::next(TextPiece& piece) {
  for (; file_ < files_.size(); ++file_) {
    if (!stream_.is_open()) open_file();
    if (next_of_file(piece)) return true;
    stream_.close();
  }
  return false;
}

void TextSource::open_file() {
  const std::string& path = files_[file_];
  stream_.clear();
  stream_.open(path, std::ios::binary);
  require(stream_.is_open(), ExitCode::missing_data, [&] {
    return str("'", path, "' cannot be read (", std::strerror(errno), ").");
  });
  is_json_ = is_json_name(path);
  line_ = 0;
  rest_.clear();
  start_ = TextPiece::Start::document;
}

bool TextSource::next_of_file(TextPiece& piece) {
  const bool found = is_json_ ? next_json(piece) : next_chunk(piece);
  require(!stream_.bad(), ExitCode::missing_data, [&] {
    return str("'", files_[file_], "' cannot be read to its end.");
  });
  return found;
}

bool TextSource::next_chunk(TextPiece& piece) {
  std::string chunk = std::move(rest_);
  const size_t kept = chunk.size();
  chunk.resize(kept + kChunk);
  stream_.read(chunk.data() + kept, kChunk);
  chunk.resize(kept + static_cast<size_t>(stream_.gcount()));
  if (chunk.empty()) return false;
  const size_t end = stream_.eof() ? chunk.size() : end_of_lines(chunk);
  rest_ = chunk.substr(end);
  chunk.resize(end);
  const auto size = static_cast<int64_t>(end);
  piece = {.text = std::move(chunk),
           .position = position_,
           .num_bytes = size,
           .start = start_,
           .cut = TextPiece::Cut::anywhere};
  position_ += size;
  start_ = TextPiece::Start::middle;
  return true;
}

bool TextSource::next_json(TextPiece& piece) {
  std::string line;
  while (std::getline(stream_, line)) {
    ++line_;
    const auto size = static_cast<int64_t>(line.size() + 1);
    const int64_t position = std::exchange(position_, position_ + size);
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    piece = {.text = text_of(line),
             .position = position,
             .num_bytes = size,
             .start = TextPiece::Start::document,
             .cut = TextPiece::Cut::nowhere};
    return true;
  }
  return false;
}

std::string TextSource::text_of(const std::string& line) const {
  const auto where = [&] { return str(files_[file_], ":", line_, ": "); };
  const json object = json::parse(line, nullptr, /*allow_exceptions=*/false);
  require(object.is_object(), ExitCode::damaged_data,
          [&] { return where() + "this line is not a JSON object."; });
  const auto field = object.find(options_.field);
  require(field != object.end(), ExitCode::damaged_data, [&] {
    return str(where(), "there is no field '", options_.field,
               "'; the object has ", keys_of(object),
               ". Name the field with --field.");
  });
  require(field->is_string(), ExitCode::damaged_data, [&] {
    return str(where(), "the field '", options_.field, "' is no string.");
  });
  return field->get<std::string>();
}

}  // namespace tessera::train
