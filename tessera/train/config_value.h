// What stands in a config file or on the command line, as a list of keys and
// values: the part of config_file.h that knows TOML.
//
//   [optimizer]            {"optimizer.lr", 0.001, "train.toml:2"}
//   lr = 1e-3
//   --optimizer.lr=2e-3    {"optimizer.lr", 0.002, "command line"}
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tessera::train {

struct ConfigValue;

/// Dates and times, which no key takes.
struct OtherValue {
  bool operator==(const OtherValue&) const = default;
};
/// A table without keys: only there can nothing of it be used.
struct EmptyTable {
  bool operator==(const EmptyTable&) const = default;
};
using ConfigArray = std::vector<ConfigValue>;

struct ConfigValue {
  std::variant<bool, int64_t, double, std::string, ConfigArray, OtherValue,
               EmptyTable>
      value;

  /// "the integer 3"; "the string \"fast\""; "an array".
  [[nodiscard]] std::string describe() const;
};

struct ConfigEntry {
  std::string key;  // dotted
  ConfigValue value;
  std::string where;  // "train.toml:12"; "command line"
  // An override as it was typed: a key that wants a string takes this.
  std::optional<std::string> typed = {};
};

/// The values of a TOML text, in the order of their keys; tables become dots.
/// name: of the file, for messages.
/// Errors: InvalidArgument with line and column when the text is not TOML.
[[nodiscard]] std::vector<ConfigEntry> parse_toml(std::string_view text,
                                                  const std::string& name);

/// "--a.b=3", or "a.b=3"; "--a.b" alone is true. What TOML cannot read is a
/// string, so that paths need no quotes.
/// Errors: InvalidArgument for a word without a key.
[[nodiscard]] ConfigEntry parse_override(std::string_view word);

/// As TOML writes them. A double keeps all its digits.
[[nodiscard]] std::string to_toml(bool value);
[[nodiscard]] std::string to_toml(int64_t value);
[[nodiscard]] std::string to_toml(double value);
[[nodiscard]] std::string to_toml(const std::string& value);

}  // namespace tessera::train
