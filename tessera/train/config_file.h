// A config file, and the words of the command line that override it.
//
//   ConfigReader reader = ConfigReader::from_file("train.toml", overrides);
//   reader.get("train.steps", config.steps, {.min = 1});
//   reader.get("optimizer.lr", config.lr, {.above = 0});
//   reader.get("shard.reshard", config.reshard,
//              {{"auto", Reshard::automatic}, {"never", Reshard::never}});
//   reader.finish();             // refuses every key that nobody asked for
//   write(reader.effective());   // all keys with the values that count
//
// Each `get` declares a key. It leaves the field as it is, the default, when
// neither file nor command line sets the key. The last override of a key wins.
//
// Errors, in all functions: InvalidArgument, beginning with "train.toml:12: "
// or "command line: ".
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/train/config_field.h"
#include "tessera/train/config_value.h"

namespace tessera::train {

class ConfigReader {
 public:
  /// Errors: also when the file cannot be read, or is not TOML.
  static ConfigReader from_file(const std::string& path,
                                std::span<const std::string> overrides = {});
  /// name: for messages.
  static ConfigReader from_text(std::string_view text, const std::string& name,
                                std::span<const std::string> overrides = {});

  void get(const std::string& key, bool& field);
  void get(const std::string& key, int64_t& field, const Limits& limits = {});
  void get(const std::string& key, uint64_t& field, const Limits& limits = {});
  /// Takes an integer too.
  void get(const std::string& key, double& field, const Limits& limits = {});
  void get(const std::string& key, std::string& field);
  void get(const std::string& key, std::vector<int64_t>& field,
           const Limits& limits = {});
  void get(const std::string& key, std::vector<double>& field,
           const Limits& limits = {});
  void get(const std::string& key, std::vector<std::string>& field);

  /// What an error says that a key takes beside its names.
  enum class Beside { nothing, integers };
  /// One of these names, for an enumeration.
  template <class E>
  using Choices = std::initializer_list<std::pair<std::string_view, E>>;
  template <class E>
  requires std::is_enum_v<E>
  void get(const std::string& key, E& field,
           std::type_identity_t<Choices<E>> choices,
           Beside beside = Beside::nothing);
  /// One of these names, or an integer, which goes into `number`; with a name
  /// that is 0.
  template <class E>
  requires std::is_enum_v<E>
  void get(const std::string& key, E& field, int64_t& number,
           std::type_identity_t<Choices<E>> choices, const Limits& limits);
  /// An integer, or `unset_name` for none.
  void get(const std::string& key, std::optional<int64_t>& field,
           std::string_view unset_name, const Limits& limits);

  /// Whether file or command line sets the key.
  [[nodiscard]] bool has(const std::string& key) const;
  /// "train.toml:12", "command line", or the file's name for a default: how an
  /// error about this key begins.
  [[nodiscard]] std::string where(const std::string& key) const;
  /// Errors: when the key is not set. use: "the token file to train on".
  void require_set(const std::string& key, std::string_view use) const;

  /// Errors: for every key that is set and was not asked for, one line each
  /// with the nearest key.
  void finish() const;

  /// Every key asked for so far, with its value, as TOML that reads back.
  [[nodiscard]] std::string effective() const;

 private:
  struct Declared {
    std::string key;
    std::string toml;
  };

  [[nodiscard]] const ConfigEntry* find(const std::string& key) const;
  /// Remembers the value that counts. A key may be asked for twice.
  void declare(const std::string& key, std::string toml);
  [[nodiscard]] std::string unknown(const ConfigEntry& entry) const;
  [[nodiscard]] std::string nearest_key(const std::string& key) const;
  [[nodiscard]] std::string table_of(const std::string& key) const;
  [[nodiscard]] bool is_integer(const std::string& key) const;
  [[nodiscard]] std::string choose(const std::string& key,
                                   std::string_view present,
                                   const std::vector<std::string>& names,
                                   Beside beside);

  std::string name_;
  std::map<std::string, ConfigEntry> entries_;
  std::vector<Declared> declared_;
};

template <class E>
requires std::is_enum_v<E>
void ConfigReader::get(const std::string& key, E& field,
                       std::type_identity_t<Choices<E>> choices,
                       Beside beside) {
  std::vector<std::string> names;
  std::string_view present = "";
  for (const auto& [name, value] : choices) {
    names.emplace_back(name);
    if (value == field) present = name;
  }
  const std::string chosen = choose(key, present, names, beside);
  for (const auto& [name, value] : choices) {
    if (name == chosen) field = value;
  }
}

template <class E>
requires std::is_enum_v<E>
void ConfigReader::get(const std::string& key, E& field, int64_t& number,
                       std::type_identity_t<Choices<E>> choices,
                       const Limits& limits) {
  number = 0;
  if (is_integer(key)) return get(key, number, limits);
  get(key, field, choices, Beside::integers);
}

}  // namespace tessera::train
