#include "tessera/checkpoint/safetensors_format.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "tessera/base/error.h"
#include "tessera/checkpoint/file.h"

namespace tessera::safetensors {
namespace {

using nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kAlignment = 4096;
constexpr std::string_view kMetadataName = "__metadata__";

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw CheckpointError(str("safetensors file '", path, "': ", what, "."));
}

// JSON as nlohmann reads it, but a key that comes twice is an error.
json parse_json(std::string_view text, const std::string& path) {
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key &&
        !keys.back().insert(value.get<std::string>()).second) {
      refuse(path, str("key ", value.dump(), " stands there twice"));
    }
    return true;
  };
  try {
    return json::parse(text, check);
  } catch (const json::exception& error) {
    refuse(path, str("its header is not JSON: ", error.what()));
  }
}

uint64_t unsigned_of(const json& value, const std::string& path,
                     const std::string& where) {
  if (!value.is_number_unsigned()) {
    refuse(path, str(where, " is ", value.dump(), "; expected 0 or more"));
  }
  return value.get<uint64_t>();
}

const json& member(const json& object, const char* key, const std::string& path,
                   const std::string& name) {
  const auto found = object.find(key);
  if (found == object.end()) {
    refuse(path, str("tensor '", name, "' has no \"", key, "\""));
  }
  return *found;
}

Dtype dtype_of(const json& value, const std::string& path,
               const std::string& name) {
  const std::string text = value.is_string() ? value.get<std::string>() : "";
  const auto dtype = find_dtype(&DtypeRow::safetensors, text);
  if (!dtype) {
    refuse(path, str("tensor '", name, "' has dtype ", value.dump(),
                     ", which is not known here"));
  }
  return *dtype;
}

Entry entry_of(const std::string& name, const json& value, uint64_t data_begin,
               uint64_t data_bytes, const std::string& path) {
  const std::string what = str("tensor '", name, "'");
  if (!value.is_object()) refuse(path, what + " is not described by an object");
  Entry entry{name, dtype_of(member(value, "dtype", path, name), path, name)};
  const json& shape = member(value, "shape", path, name);
  if (!shape.is_array()) refuse(path, what + ": its shape is not a list");
  for (const json& size : shape) {
    const uint64_t number = unsigned_of(size, path, what + ": a size");
    if (number > INT64_MAX) refuse(path, what + ": its shape is too large");
    entry.sizes.push_back(static_cast<int64_t>(number));
  }
  const json& range = member(value, "data_offsets", path, name);
  if (!range.is_array() || range.size() != 2) {
    refuse(path, what + ": data_offsets are not two numbers");
  }
  const uint64_t begin = unsigned_of(range[0], path, what + ": an offset");
  const uint64_t end = unsigned_of(range[1], path, what + ": an offset");
  if (begin > end || end > data_bytes) {
    refuse(path, str(what, " lies at ", begin, " to ", end, " of ", data_bytes,
                     " bytes of data"));
  }
  const auto expected = num_bytes_of(entry.dtype, entry.sizes);
  if (!expected || *expected != end - begin) {
    refuse(path, str(what, " has ", end - begin,
                     " bytes, which does not fit its dtype and shape"));
  }
  entry.begin = data_begin + begin;
  entry.end = data_begin + end;
  return entry;
}

void check_ranges(const std::vector<Entry>& tensors, uint64_t data_begin,
                  uint64_t file_size, const std::string& path) {
  uint64_t at = data_begin;
  for (const Entry& entry : tensors) {
    if (entry.begin != at) {
      refuse(path, str("tensor '", entry.name, "' begins at byte ", entry.begin,
                       "; expected ", at,
                       ": ranges must neither overlap nor leave gaps"));
    }
    at = entry.end;
  }
  if (at != file_size) {
    refuse(path, str("the tensors end at byte ", at, " but the file has ",
                     file_size, ": it is cut, or was written by mistake"));
  }
}

Metadata metadata_of(const json& value, const std::string& path) {
  if (!value.is_object()) refuse(path, "__metadata__ is not an object");
  Metadata metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) {
      refuse(path, str("__metadata__ '", key, "' is not text"));
    }
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

// One tensor's JSON object. Written by hand: in the order of the data.
std::string describe(const Entry& entry, uint64_t offset) {
  const json shape(entry.sizes);
  return str(json(entry.name).dump(), ":{\"dtype\":\"",
             row_of(entry.dtype).safetensors, "\",\"shape\":", shape.dump(),
             ",\"data_offsets\":[", offset, ",",
             offset + (entry.end - entry.begin), "]}");
}

void check_writable(const Entry& entry) {
  const DtypeRow& row = row_of(entry.dtype);
  require<Unsupported>(!row.safetensors.empty(), [&] {
    return str("safetensors: tensor '", entry.name, "' is of torch.", row.name,
               ", which the format does not have; convert it first.");
  });
  require<InvalidArgument>(
      entry.name != kMetadataName && num_bytes_of(entry.dtype, entry.sizes),
      [&] {
        return str("safetensors: '", entry.name,
                   "' cannot be written: the name is reserved, or a size is "
                   "negative or too large.");
      });
}

}  // namespace

Header parse_header(std::string_view text, uint64_t file_size,
                    const std::string& path) {
  const uint64_t data_begin = kLengthBytes + text.size();
  if (data_begin > file_size) refuse(path, "it is shorter than its header");
  if (!text.starts_with('{')) refuse(path, "its header is not a JSON object");
  const json object = parse_json(text, path);
  Header header;
  for (const auto& [name, value] : object.items()) {
    if (name == kMetadataName) {
      header.metadata = metadata_of(value, path);
    } else {
      header.tensors.push_back(
          entry_of(name, value, data_begin, file_size - data_begin, path));
    }
  }
  std::ranges::sort(header.tensors, [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  check_ranges(header.tensors, data_begin, file_size, path);
  return header;
}

Header read_header(const std::string& path) {
  const auto file = checkpoint::File::open(path);
  const uint64_t file_size = file.size();
  if (file_size < kLengthBytes) refuse(path, "it has less than 8 bytes");
  uint64_t length = 0;
  static_assert(std::endian::native == std::endian::little);
  file.read(0, std::as_writable_bytes(std::span(&length, 1)));
  if (length > kMostHeaderBytes || length > file_size - kLengthBytes) {
    refuse(path, str("its header claims ", length, " bytes, of a file of ",
                     file_size, " and ", kMostHeaderBytes, " at most"));
  }
  std::string text(length, '\0');
  file.read(kLengthBytes, std::as_writable_bytes(std::span(text)));
  return parse_header(text, file_size, path);
}

std::string lay_out(std::vector<Entry>& tensors, const Metadata& metadata) {
  std::ranges::sort(tensors, [](const Entry& a, const Entry& b) {
    const int a_bytes = row_of(a.dtype).num_bytes;
    const int b_bytes = row_of(b.dtype).num_bytes;
    return a_bytes != b_bytes ? a_bytes > b_bytes : a.name < b.name;
  });
  std::string text = "{";
  if (!metadata.empty()) {
    text += str('"', kMetadataName, "\":", json(metadata).dump());
  }
  uint64_t offset = 0;
  std::set<std::string> names;
  for (Entry& entry : tensors) {
    check_writable(entry);
    require<InvalidArgument>(names.insert(entry.name).second, [&] {
      return str("safetensors: two tensors are named '", entry.name, "'.");
    });
    entry.begin = offset;
    entry.end = offset + *num_bytes_of(entry.dtype, entry.sizes);
    if (text.size() > 1) text += ',';
    text += describe(entry, offset);
    offset = entry.end;
  }
  text += '}';
  const uint64_t used = kLengthBytes + text.size();
  text.append((kAlignment - used % kAlignment) % kAlignment, ' ');
  uint64_t length = text.size();
  std::string bytes(kLengthBytes, '\0');
  std::memcpy(bytes.data(), &length, kLengthBytes);
  for (Entry& entry : tensors) {
    entry.begin += kLengthBytes + length;
    entry.end += kLengthBytes + length;
  }
  return bytes + text;
}

std::vector<size_t> divide_into_files(const std::vector<uint64_t>& num_bytes,
                                      uint64_t most_bytes) {
  std::vector<size_t> files;
  size_t file = 0;
  uint64_t filled = 0;
  for (const uint64_t bytes : num_bytes) {
    if (filled > 0 && bytes > most_bytes - std::min(filled, most_bytes)) {
      ++file;
      filled = 0;
    }
    filled += bytes;
    files.push_back(file);
  }
  return files;
}

std::string file_name(size_t index, size_t num_files) {
  if (num_files <= 1) return "model.safetensors";
  std::array<char, 80> text{};
  std::snprintf(text.data(), text.size(), "model-%05zu-of-%05zu.safetensors",
                index + 1, num_files);
  return text.data();
}

std::string write_index(const Index& index) {
  const json object = {{"metadata", {{"total_size", index.total_bytes}}},
                       {"weight_map", index.file_of}};
  return object.dump(2) + "\n";
}

Index parse_index(std::string_view text, const std::string& path) {
  const json object = parse_json(text, path);
  const auto map =
      object.is_object() ? object.find("weight_map") : object.end();
  if (map == object.end() || !map->is_object()) {
    refuse(path, "it has no \"weight_map\"");
  }
  Index index;
  for (const auto& [name, file] : map->items()) {
    const std::string plain = file.is_string() ? file.get<std::string>() : "";
    if (plain.empty() || plain.starts_with('.') ||
        plain.find_first_of(std::string_view("/\\\0", 3)) != plain.npos) {
      refuse(path, str("tensor '", name, "' is in ", file.dump(),
                       ", which is not a plain file name"));
    }
    index.file_of[name] = plain;
  }
  return index;
}

}  // namespace tessera::safetensors
