#include "tessera/train/config_changes.h"

#include <algorithm>
#include <array>
#include <map>
#include <variant>

#include "tessera/base/error.h"
#include "tessera/train/config_value.h"

namespace tessera::train {
namespace {

constexpr std::array<std::string_view, 5> kNotCompared = {
    "data.", "output.", "checkpoint.", "distributed.", "model.preset"};
constexpr std::array<std::string_view, 7> kFreeOfModel = {
    "model.init_std",        "model.dropout",        "model.kernels",
    "model.recompute",       "model.selective_last", "model.offload_blocks",
    "model.offload_gb_per_s"};

struct TomlText {
  std::string operator()(const ConfigArray&) const { return "[...]"; }
  std::string operator()(const OtherValue&) const { return "?"; }
  std::string operator()(const EmptyTable&) const { return "{}"; }
  template <class T>
  std::string operator()(const T& value) const {
    return to_toml(value);
  }
};

bool is_compared(std::string_view key) {
  return std::ranges::none_of(kNotCompared, [&](std::string_view prefix) {
    return key.starts_with(prefix);
  });
}

std::map<std::string, std::string> values_of(std::string_view text,
                                             const std::string& name) {
  std::map<std::string, std::string> values;
  for (const ConfigEntry& entry : parse_toml(text, name)) {
    values[entry.key] = std::visit(TomlText{}, entry.value.value);
  }
  return values;
}

}  // namespace

std::vector<ConfigChange> config_changes(std::string_view before,
                                         std::string_view now) {
  const auto old_values = values_of(before, "the checkpoint's config");
  std::vector<ConfigChange> changes;
  for (const auto& [key, value] : values_of(now, "the config")) {
    const auto old = old_values.find(key);
    if (old == old_values.end() || old->second == value) continue;
    if (is_compared(key)) changes.push_back({key, old->second, value});
  }
  return changes;
}

bool shapes_model(std::string_view key) {
  return key.starts_with("model.") &&
         std::ranges::find(kFreeOfModel, key) == kFreeOfModel.end();
}

std::string describe(const ConfigChange& change) {
  return str(change.key, " ", change.before, " -> ", change.now);
}

}  // namespace tessera::train
