#include "tessera/state/state_dict.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/tensor/spread.h"

namespace tessera {
namespace {

bool holds_dict(const Value& value) {
  if (value.get<Value::Dict>() != nullptr) return true;
  const auto* list = value.get<Value::List>();
  return list != nullptr && std::ranges::any_of(list->items, holds_dict);
}

std::string text_of(const Value& key) {
  const auto* text = key.get<std::string>();
  return text != nullptr ? *text : key.show();
}

// The leaves below one step of a path, in order.
struct Branch {
  PathStep step;
  std::vector<std::pair<Path, Value>> leaves;
};

std::vector<Branch> branches_of(
    const std::vector<std::pair<Path, Value>>& leaves) {
  std::vector<Branch> branches;
  for (const auto& [path, value] : leaves) {
    auto at = std::ranges::find(branches, path.front(), &Branch::step);
    if (at == branches.end()) {
      at = branches.insert(at, Branch{path.front(), {}});
    }
    at->leaves.emplace_back(Path(path.begin() + 1, path.end()), value);
  }
  return branches;
}

}  // namespace

StateTensor state_tensor(const at::Tensor& tensor) {
  const Spread* spread = spread_of(tensor);
  const at::Tensor own = local(tensor).detach();
  require<InvalidState>(!own.is_meta(), [&] {
    return str(
        "checkpoint: ",
        spread != nullptr ? "parameter '" + spread->name + "'"
                          : std::string("a tensor"),
        " is on the meta device: it has no values, and no memory to load "
        "into. Call materialize first.");
  });
  if (spread != nullptr) return state_tensor_like(tensor, own);
  return {own,
          own.sizes().vec(),
          {{std::vector<int64_t>(own.sizes().size(), 0), own.sizes().vec()}}};
}

StateTensor state_tensor_like(const at::Tensor& parameter,
                              const at::Tensor& own) {
  const Spread* spread = spread_of(parameter);
  if (spread == nullptr) return state_tensor(own);
  return {own, spread->global_sizes, spread->boxes};
}

void add_value(StateDict& dict, const Path& path, const Value& value) {
  if (const auto* nested = value.get<Value::Dict>()) {
    for (const auto& [key, item] : nested->pairs) {
      add_value(dict, path / text_of(key), item);
    }
  } else if (holds_dict(value)) {
    const auto& items = value.get<Value::List>()->items;
    for (size_t i = 0; i < items.size(); ++i) {
      add_value(dict, path / static_cast<int64_t>(i), items[i]);
    }
  } else {
    dict.push_back({path, value});
  }
}

Value nested_value(const std::vector<std::pair<Path, Value>>& leaves) {
  if (leaves.size() == 1 && leaves[0].first.empty()) return leaves[0].second;
  for (const auto& [path, value] : leaves) {
    require<CheckpointError>(!path.empty(), [&] {
      return str("checkpoint: the value ", value.show(),
                 " has a name that is the name of others, too.");
    });
  }
  std::vector<Branch> branches = branches_of(leaves);
  const bool list = !branches.empty() &&
                    std::holds_alternative<int64_t>(branches.front().step);
  if (!list) {
    Value::Pairs pairs;
    for (const Branch& branch : branches) {
      const auto* key = std::get_if<std::string>(&branch.step);
      pairs.emplace_back(
          key != nullptr ? *key : str(std::get<int64_t>(branch.step)),
          nested_value(branch.leaves));
    }
    return Value::dict(std::move(pairs));
  }
  std::ranges::sort(branches, {}, &Branch::step);
  Value::Items items;
  for (const Branch& branch : branches) {
    items.push_back(nested_value(branch.leaves));
  }
  return Value::list(std::move(items));
}

Value Stored::nested() const {
  std::vector<std::pair<Path, Value>> leaves;
  for (const auto& [key, value] : values) {
    leaves.emplace_back(value_paths.at(key), value);
  }
  return nested_value(leaves);
}

namespace {

bool begins_with(const Path& path, const Path& first) {
  return first.size() <= path.size() &&
         std::equal(first.begin(), first.end(), path.begin());
}

}  // namespace

Value Stored::nested_over(const StateDict& own) const {
  std::vector<std::pair<Path, Value>> leaves;
  for (const auto& [key, value] : values) {
    leaves.emplace_back(value_paths.at(key), value);
  }
  const size_t num_stored = leaves.size();
  for (const StateEntry& entry : own) {
    const bool free =
        std::none_of(leaves.begin(),
                     leaves.begin() + static_cast<std::ptrdiff_t>(num_stored),
                     [&](const auto& leaf) {
                       return begins_with(leaf.first, entry.path) ||
                              begins_with(entry.path, leaf.first);
                     });
    if (free) leaves.emplace_back(entry.path, std::get<Value>(entry.leaf));
  }
  return nested_value(leaves);
}

}  // namespace tessera
