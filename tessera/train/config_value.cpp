#include "tessera/train/config_value.h"

#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

constexpr const char* kCommandLine = "command line";

ConfigValue convert(const toml::node& node) {
  if (const auto* value = node.as_boolean()) return {value->get()};
  if (const auto* value = node.as_integer()) return {value->get()};
  if (const auto* value = node.as_floating_point()) return {value->get()};
  if (const auto* value = node.as_string()) return {value->get()};
  if (const auto* array = node.as_array()) {
    ConfigArray values;
    for (const toml::node& element : *array) values.push_back(convert(element));
    return {std::move(values)};
  }
  return {OtherValue{}};
}

/// A quoted key with a dot in it stays distinct from a key in a table.
std::string joined(const std::string& path, std::string_view key) {
  const bool plain = key.find('.') == key.npos;
  const std::string name = plain ? std::string(key) : str('"', key, '"');
  return path.empty() ? name : path + "." + name;
}

void flatten(const toml::table& table, const std::string& path,
             const std::string& file, std::vector<ConfigEntry>& entries) {
  for (const auto& [name, node] : table) {
    const std::string key = joined(path, name.str());
    const std::string where = str(file, ":", node.source().begin.line);
    const toml::table* inner = node.as_table();
    if (inner != nullptr && !inner->empty()) {
      flatten(*inner, key, file, entries);
    } else if (inner != nullptr) {
      entries.push_back({key, {EmptyTable{}}, where});
    } else {
      entries.push_back({key, convert(node), where});
    }
  }
}

/// What TOML makes of `text` as a value; the text itself when it makes nothing.
ConfigValue value_of(const std::string& text) {
  if (text.find_first_of("\n\r#") != text.npos) return {text};
  try {
    const toml::table table = toml::parse("value = " + text);
    const toml::node* node = table.get("value");
    if (table.size() == 1 && node != nullptr && !node->is_table()) {
      return convert(*node);
    }
  } catch (const toml::parse_error&) {
    // Not TOML: a path, a name.
  }
  return {text};
}

void append_escaped(std::string& text, char letter) {
  constexpr char kDigits[] = "0123456789abcdef";
  const auto code = static_cast<unsigned char>(letter);
  if (letter == '"' || letter == '\\') {
    (text += '\\') += letter;
  } else if (code < 0x20 || code == 0x7f) {
    text += "\\u00";
    (text += kDigits[code >> 4]) += kDigits[code & 15];
  } else {
    text += letter;
  }
}

}  // namespace

std::string ConfigValue::describe() const {
  if (const auto* flag = std::get_if<bool>(&value)) {
    return *flag ? "true" : "false";
  }
  if (const auto* number = std::get_if<int64_t>(&value)) {
    return str("the integer ", *number);
  }
  if (const auto* number = std::get_if<double>(&value)) {
    return str("the number ", to_toml(*number));
  }
  if (const auto* text = std::get_if<std::string>(&value)) {
    return "the string " + to_toml(*text);
  }
  if (std::holds_alternative<ConfigArray>(value)) return "an array";
  return std::holds_alternative<EmptyTable>(value) ? "a table" : "a date";
}

std::vector<ConfigEntry> parse_toml(std::string_view text,
                                    const std::string& name) {
  try {
    std::vector<ConfigEntry> entries;
    flatten(toml::parse(text, name), "", name, entries);
    return entries;
  } catch (const toml::parse_error& error) {
    const auto at = error.source().begin;
    throw InvalidArgument(str(name, ":", at.line, ":", at.column,
                              ": this is not TOML: ", error.description()));
  }
}

ConfigEntry parse_override(std::string_view word) {
  const std::string_view whole = word;
  if (word.starts_with("--")) word.remove_prefix(2);
  const size_t equals = word.find('=');
  const std::string key(word.substr(0, equals));
  require<InvalidArgument>(!key.empty() && !key.starts_with('-'), [&] {
    return str(kCommandLine, ": '", whole,
               "' sets no key; write --table.key=value.");
  });
  if (equals == word.npos) return {key, {true}, kCommandLine, "true"};
  const std::string text(word.substr(equals + 1));
  const ConfigValue value = value_of(text);
  const auto* quoted = std::get_if<std::string>(&value.value);
  return {key, value, kCommandLine, quoted != nullptr ? *quoted : text};
}

std::string to_toml(bool value) { return value ? "true" : "false"; }

std::string to_toml(int64_t value) { return std::to_string(value); }

std::string to_toml(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  const std::string text(digits, end);
  // Without a point or exponent it would be an integer.
  return text.find_first_of(".e") == text.npos ? text + ".0" : text;
}

std::string to_toml(const std::string& value) {
  std::string text = "\"";
  for (const char letter : value) append_escaped(text, letter);
  return text + "\"";
}

}  // namespace tessera::train
