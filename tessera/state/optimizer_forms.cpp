#include "tessera/state/optimizer_forms.h"

#include <algorithm>
#include <map>
#include <vector>

#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr const char* kGroups = "param_groups";
constexpr const char* kParameters = "params";

// What a path below param_groups means, in the nested form.
struct GroupField {
  int64_t group = 0;
  std::string name;
};

const std::string* text_at(const Path& path, size_t i) {
  return i < path.size() ? std::get_if<std::string>(&path[i]) : nullptr;
}

bool find_group_field(const Path& path, GroupField& field) {
  const std::string* root = text_at(path, 0);
  const std::string* name = text_at(path, 2);
  if (root == nullptr || *root != kGroups || name == nullptr) return false;
  const auto* group = std::get_if<int64_t>(&path[1]);
  if (group == nullptr) return false;
  field = {*group, *name};
  return true;
}

std::map<int64_t, Value::Items> parameters_of_groups(const StateDict& nested) {
  std::map<int64_t, Value::Items> parameters;
  GroupField field;
  for (const StateEntry& entry : nested) {
    if (!find_group_field(entry.path, field)) continue;
    if (field.name != kParameters) continue;
    Value::Items& names = parameters[field.group];
    for (const Value& name : std::get<Value>(entry.leaf).items()) {
      // A tied parameter may stand there several times.
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
  }
  return parameters;
}

}  // namespace

StateDict flatten_optimizer(const StateDict& nested) {
  const auto parameters = parameters_of_groups(nested);
  StateDict flat;
  GroupField field;
  for (const StateEntry& entry : nested) {
    if (!find_group_field(entry.path, field)) {
      flat.push_back({{key_of(entry.path)}, entry.leaf});
      continue;
    }
    if (field.name == kParameters) continue;
    const auto found = parameters.find(field.group);
    if (found == parameters.end()) continue;
    for (const Value& name : found->second) {
      flat.push_back(
          {{str(kGroups, ".", name.as_text(), ".", field.name)}, entry.leaf});
    }
  }
  return flat;
}

void append_optimizer(StateDict& dict, const StateDict& more) {
  GroupField field;
  int64_t next = 0;
  for (const StateEntry& entry : dict) {
    if (find_group_field(entry.path, field)) {
      next = std::max(next, field.group + 1);
    }
  }
  for (StateEntry entry : more) {
    if (find_group_field(entry.path, field)) entry.path[1] = field.group + next;
    dict.push_back(std::move(entry));
  }
}

std::set<std::string> parameters_with_options(const StateDict& dict) {
  std::set<std::string> names;
  for (const auto& [group, parameters] : parameters_of_groups(dict)) {
    for (const Value& name : parameters) names.insert(name.as_text());
  }
  const std::string prefix = str(kGroups, ".");
  for (const StateEntry& entry : dict) {
    const std::string* key = text_at(entry.path, 0);
    if (entry.path.size() != 1 || !key->starts_with(prefix)) continue;
    const size_t end = key->rfind('.');
    if (end < prefix.size()) continue;
    names.insert(key->substr(prefix.size(), end - prefix.size()));
  }
  return names;
}

}  // namespace tessera
