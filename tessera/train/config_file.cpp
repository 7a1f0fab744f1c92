#include "tessera/train/config_file.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include "tessera/base/error.h"
#include "tessera/base/nearest_name.h"

namespace tessera::train {
namespace {

template <class T>
std::string to_toml(const std::vector<T>& values) {
  std::string text;
  for (const T& value : values) {
    text += (text.empty() ? "" : ", ") + tessera::train::to_toml(value);
  }
  return "[" + text + "]";
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

std::string_view last_name(std::string_view key) {
  return key.substr(key.rfind('.') + 1);  // npos + 1 is 0
}

std::string_view table_name(std::string_view key) {
  const size_t dot = key.rfind('.');
  return dot == key.npos ? "" : key.substr(0, dot);
}

}  // namespace

ConfigReader ConfigReader::from_file(const std::string& path,
                                     std::span<const std::string> overrides) {
  std::ifstream file(path, std::ios::binary);
  // A folder opens, and fails at the first read.
  const bool opened = file.is_open() && (file.peek(), !file.bad());
  require<InvalidArgument>(opened, [&] {
    return str("the config file '", path, "' cannot be read.");
  });
  file.clear();
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return from_text(text, path, overrides);
}

ConfigReader ConfigReader::from_text(std::string_view text,
                                     const std::string& name,
                                     std::span<const std::string> overrides) {
  ConfigReader reader;
  reader.name_ = name;
  for (ConfigEntry& entry : parse_toml(text, name)) {
    reader.entries_[entry.key] = std::move(entry);
  }
  for (const std::string& word : overrides) {
    ConfigEntry entry = parse_override(word);
    reader.entries_[entry.key] = std::move(entry);
  }
  return reader;
}

void ConfigReader::get(const std::string& key, bool& field) {
  if (const auto* entry = find(key)) take(*entry, entry->value, {}, field);
  declare(key, train::to_toml(field));
}

void ConfigReader::get(const std::string& key, int64_t& field,
                       const Limits& limits) {
  if (const auto* entry = find(key)) take(*entry, entry->value, limits, field);
  declare(key, train::to_toml(field));
}

void ConfigReader::get(const std::string& key, uint64_t& field,
                       const Limits& limits) {
  auto number = static_cast<int64_t>(field);
  get(key, number,
      {.min = std::max(0.0, limits.min),
       .max = limits.max,
       .above = limits.above});
  field = static_cast<uint64_t>(number);
}

void ConfigReader::get(const std::string& key, double& field,
                       const Limits& limits) {
  if (const auto* entry = find(key)) take(*entry, entry->value, limits, field);
  declare(key, train::to_toml(field));
}

void ConfigReader::get(const std::string& key, std::string& field) {
  if (const auto* entry = find(key)) {
    if (entry->typed.has_value()) {
      field = *entry->typed;
    } else {
      take(*entry, entry->value, {}, field);
    }
  }
  declare(key, train::to_toml(field));
}

void ConfigReader::get(const std::string& key, std::vector<int64_t>& field,
                       const Limits& limits) {
  if (const auto* entry = find(key)) take(*entry, entry->value, limits, field);
  declare(key, to_toml(field));
}

void ConfigReader::get(const std::string& key, std::vector<double>& field,
                       const Limits& limits) {
  if (const auto* entry = find(key)) take(*entry, entry->value, limits, field);
  declare(key, to_toml(field));
}

void ConfigReader::get(const std::string& key,
                       std::vector<std::string>& field) {
  if (const auto* entry = find(key)) take(*entry, entry->value, {}, field);
  declare(key, to_toml(field));
}

std::string ConfigReader::choose(const std::string& key,
                                 std::string_view present,
                                 const std::vector<std::string>& names,
                                 Beside beside) {
  std::string chosen(present);
  get(key, chosen);
  if (std::ranges::find(names, chosen) != names.end()) return chosen;
  const std::string nearest = nearest_name(chosen, names);
  throw InvalidArgument(
      str(where(key), ": ", key, " is '", chosen, "'",
          nearest.empty() ? "" : "; did you mean '" + nearest + "'?",
          nearest.empty() ? "; give one of: " : " It takes: ", joined(names),
          beside == Beside::integers ? ", or an integer." : "."));
}

void ConfigReader::get(const std::string& key, std::optional<int64_t>& field,
                       std::string_view unset_name, const Limits& limits) {
  field.reset();
  if (is_integer(key)) return get(key, field.emplace(), limits);
  (void)choose(key, unset_name, {std::string(unset_name)}, Beside::integers);
}

bool ConfigReader::is_integer(const std::string& key) const {
  const auto* entry = find(key);
  return entry != nullptr &&
         std::holds_alternative<int64_t>(entry->value.value);
}

bool ConfigReader::has(const std::string& key) const {
  return find(key) != nullptr;
}

std::string ConfigReader::where(const std::string& key) const {
  const auto* entry = find(key);
  return entry == nullptr ? name_ : entry->where;
}

void ConfigReader::require_set(const std::string& key,
                               std::string_view use) const {
  require<InvalidArgument>(has(key), [&] {
    return str(name_, ": ", key, " is not set; it names ", use, ".");
  });
}

void ConfigReader::finish() const {
  std::string lines;
  for (const auto& [key, entry] : entries_) {
    const bool known =
        std::ranges::find(declared_, key, &Declared::key) != declared_.end();
    const bool is_table = std::holds_alternative<EmptyTable>(entry.value.value);
    const bool known_table = std::ranges::any_of(
        declared_,
        [&](const Declared& d) { return d.key.starts_with(key + "."); });
    if (known || (is_table && known_table)) continue;
    lines += (lines.empty() ? "" : "\n") + unknown(entry);
  }
  require<InvalidArgument>(lines.empty(), [&] { return lines; });
}

std::string ConfigReader::effective() const {
  std::vector<std::string> tables = {""};
  for (const Declared& each : declared_) {
    const std::string table(table_name(each.key));
    if (std::ranges::find(tables, table) == tables.end()) {
      tables.push_back(table);
    }
  }
  std::string text;
  for (const std::string& table : tables) {
    if (!table.empty()) {
      text += str(text.empty() ? "" : "\n", "[", table, "]\n");
    }
    for (const Declared& each : declared_) {
      if (table_name(each.key) == table) {
        text += str(last_name(each.key), " = ", each.toml, "\n");
      }
    }
  }
  return text;
}

const ConfigEntry* ConfigReader::find(const std::string& key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : &found->second;
}

void ConfigReader::declare(const std::string& key, std::string toml) {
  const auto found = std::ranges::find(declared_, key, &Declared::key);
  if (found != declared_.end()) {
    found->toml = std::move(toml);
  } else {
    declared_.push_back({key, std::move(toml)});
  }
}

std::string ConfigReader::unknown(const ConfigEntry& entry) const {
  const std::string nearest = nearest_key(entry.key);
  if (!nearest.empty()) {
    return str(entry.where, ": there is no key '", entry.key,
               "'; did you mean '", nearest, "'?");
  }
  return str(entry.where, ": there is no key '", entry.key, "'; ",
             table_of(entry.key), ".");
}

std::string ConfigReader::nearest_key(const std::string& key) const {
  std::vector<std::string> keys;
  for (const Declared& each : declared_) keys.push_back(each.key);
  // The right name in the wrong table comes first: its letters differ much.
  for (const std::string& candidate : keys) {
    if (last_name(candidate) == last_name(key)) return candidate;
  }
  return nearest_name(key, keys);
}

/// What the key could have been: the keys of its table, or all tables.
std::string ConfigReader::table_of(const std::string& key) const {
  std::vector<std::string> siblings, tables;
  const std::string_view own = table_name(key);
  for (const Declared& each : declared_) {
    const std::string_view table = table_name(each.key);
    if (table == own || table == key) {
      siblings.emplace_back(last_name(each.key));
    }
    const bool seen =
        std::ranges::find(tables, std::string(table)) != tables.end();
    if (!seen && !table.empty()) tables.emplace_back(table);
  }
  if (siblings.empty() || own.empty()) {
    return "there are the tables " + joined(tables);
  }
  return str("[", own, "] has ", joined(siblings));
}

}  // namespace tessera::train
