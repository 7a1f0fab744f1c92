// The optimizer's part of a checkpoint:
//
//   state.<parameter>.exp_avg ...            tensors, cut like the parameter
//   param_groups.0.lr ..., .params           values
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <unordered_map>

#include "tessera/base/error.h"
#include "tessera/state/optimizer_fields.h"
#include "tessera/state/state.h"
#include "tessera/tensor/spread.h"

namespace tessera {
namespace {

using torch::optim::OptimizerParamGroup;

constexpr const char* kParamGroups = "param_groups";

class OptimizerState final : public Stateful {
 public:
  OptimizerState(torch::nn::Module& model, torch::optim::Optimizer& optimizer)
      : model_(model), optimizer_(optimizer) {}

  StateDict state_dict() override {
    find_names();
    StateDict dict;
    Value::Items groups;
    for (auto& group : optimizer_.param_groups()) {
      add_tensors(dict, group);
      Value::Pairs fields = group_fields(group);
      Value::Items names;
      for (const at::Tensor& parameter : group.params()) {
        names.emplace_back(name_of(parameter));
      }
      fields.emplace_back("params", Value::list(std::move(names)));
      groups.push_back(Value::dict(std::move(fields)));
    }
    add_value(dict, {kParamGroups}, Value::list(std::move(groups)));
    return dict;
  }

  StateDict targets(const Stored& stored) override {
    find_names();
    if (is_numbered(stored)) number_names();
    StateDict dict;
    for (auto& group : optimizer_.param_groups()) {
      set_fields(group, stored);
      for (const at::Tensor& parameter : group.params()) {
        if (!wants(group, parameter, stored)) continue;
        make_state(group, parameter);
        add_state(dict, group, parameter, Purpose::load);
      }
    }
    return dict;
  }

  void loaded(const StateDict& filled, const Stored&) override {
    std::map<std::string, at::Tensor> by_key;
    for (const StateEntry& entry : filled) {
      by_key[key_of(entry.path)] = std::get<StateTensor>(entry.leaf).local;
    }
    for (auto& group : optimizer_.param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        if (!is_state_here(optimizer_, parameter)) continue;
        NamedState state;
        for (const std::string& name : state_names(group)) {
          const auto at = by_key.find(key_of(path_of(parameter, name)));
          if (at != by_key.end()) state[name] = at->second;
        }
        if (state.empty()) continue;
        set_state_of_parameter(optimizer_, group, parameter, std::move(state));
      }
    }
  }

  std::optional<Peers> peers() override { return peers_of(optimizer_); }

 private:
  void find_names() {
    names_.clear();
    for (const auto& item : model_.named_parameters()) {
      if (!item.value().defined()) continue;
      names_.emplace(item.value().unsafeGetTensorImpl(), item.key());
    }
  }

  // Whether parameters are called by numbers: a raw Python optimizer was saved.
  static bool is_numbered(const Stored& stored) {
    return std::ranges::any_of(stored.values, [](const auto& entry) {
      const auto* names = entry.second.template get<Value::List>();
      return is_list_of_names(entry.first) && names != nullptr &&
             std::ranges::any_of(names->items, [](const Value& name) {
               return name.get<int64_t>() != nullptr;
             });
    });
  }

  static bool is_list_of_names(const std::string& key) {
    return key.starts_with(kParamGroups) && key.ends_with(".params");
  }

  // As Python counts: through the groups, each parameter once.
  void number_names() {
    int64_t next = 0;
    for (const auto& group : optimizer_.param_groups()) {
      for (size_t i = 0; i < group.params().size(); ++i) {
        if (!is_first(group, i)) continue;
        names_[group.params()[i].unsafeGetTensorImpl()] = str(next++);
      }
    }
  }

  static bool lists(const Value& names, const std::string& name) {
    return std::ranges::any_of(names.items(), [&](const Value& item) {
      const auto* number = item.get<int64_t>();
      return number != nullptr ? str(*number) == name : item == Value(name);
    });
  }

  const std::string& name_of(const at::Tensor& parameter) const {
    const auto found = names_.find(parameter.unsafeGetTensorImpl());
    require<InvalidArgument>(found != names_.end(), [] {
      return str(
          "checkpoint: the optimizer holds a parameter that the model "
          "does not have. Make the optimizer after fully_shard, of this "
          "model's parameters().");
    });
    return found->second;
  }

  Path path_of(const at::Tensor& parameter, const std::string& name) const {
    return {"state", name_of(parameter), name};
  }

  static bool is_scalar(const std::string& name) { return name == "step"; }

  // A tied parameter may stand in a group several times.
  static bool is_first(const OptimizerParamGroup& group, size_t i) {
    const auto& all = group.params();
    return std::none_of(
        all.begin(), all.begin() + static_cast<std::ptrdiff_t>(i),
        [&](const at::Tensor& other) { return other.is_same(all[i]); });
  }

  void add_tensors(StateDict& dict, const OptimizerParamGroup& group) {
    for (size_t i = 0; i < group.params().size(); ++i) {
      const at::Tensor& parameter = group.params()[i];
      if (!parameter.requires_grad() || !is_first(group, i)) continue;
      add_state(dict, group, parameter, Purpose::save);
    }
  }

  // A rank that holds nothing of a parameter may not know its step.
  enum class Purpose { save, load };
  void add_state(StateDict& dict, const OptimizerParamGroup& group,
                 const at::Tensor& parameter, Purpose purpose) {
    if (!is_state_here(optimizer_, parameter)) {
      add_absent(dict, group, parameter);
      return;
    }
    const at::Tensor own = local(parameter).detach();
    NamedState state = state_of_parameter(optimizer_, parameter);
    for (const std::string& name : state_names(group)) {
      at::Tensor& tensor = state[name];
      if (is_scalar(name)) {
        if (!tensor.defined()) tensor = at::zeros({}, at::kFloat);
        StateTensor scalar = state_tensor(tensor);
        // Of an empty parameter nobody knows more.
        const Spread* spread = spread_of(parameter);
        const bool unknown = own.numel() == 0 && spread != nullptr &&
                             c10::multiply_integers(spread->global_sizes) > 0;
        if (unknown && purpose == Purpose::save) scalar.boxes.clear();
        dict.push_back({path_of(parameter, name), scalar});
        continue;
      }
      if (!tensor.defined()) tensor = at::zeros_like(own);
      dict.push_back(
          {path_of(parameter, name), state_tensor_like(parameter, tensor)});
    }
  }

  // What another rank holds: its names and sizes, and nothing of it.
  void add_absent(StateDict& dict, const OptimizerParamGroup& group,
                  const at::Tensor& parameter) const {
    const at::Tensor own = local(parameter).detach();
    for (const std::string& name : state_names(group)) {
      const bool scalar = is_scalar(name);
      const auto options =
          scalar ? at::TensorOptions(at::kFloat) : own.options();
      dict.push_back({path_of(parameter, name),
                      StateTensor{.local = at::empty({0}, options),
                                  .sizes = scalar ? std::vector<int64_t>()
                                                  : own.sizes().vec(),
                                  .boxes = {}}});
    }
  }

  bool wants(const OptimizerParamGroup& group, const at::Tensor& parameter,
             const Stored& stored) const {
    if (!parameter.requires_grad()) return false;
    const auto has = [&](const std::string& name) {
      return stored.tensors.contains(key_of(path_of(parameter, name)));
    };
    const std::vector<std::string> names = state_names(group);
    if (std::ranges::any_of(names, has)) return true;
    // Python keeps no state of a parameter that never had a gradient.
    return !is_known(name_of(parameter), stored);
  }

  static bool is_known(const std::string& name, const Stored& stored) {
    for (const auto& [key, value] : stored.values) {
      if (!key.starts_with(kParamGroups)) continue;
      if (key.starts_with(str(kParamGroups, ".", name, "."))) return true;
      if (!is_list_of_names(key) || value.get<Value::List>() == nullptr) {
        continue;
      }
      if (lists(value, name)) return true;
    }
    return false;
  }

  void make_state(const OptimizerParamGroup& group,
                  const at::Tensor& parameter) {
    if (!is_state_here(optimizer_, parameter)) return;
    if (!state_of_parameter(optimizer_, parameter).empty()) return;
    NamedState state;
    for (const std::string& name : state_names(group)) {
      state[name] = is_scalar(name) ? at::zeros({}, at::kFloat)
                                    : at::zeros_like(local(parameter).detach());
    }
    if (state.empty()) return;
    set_state_of_parameter(optimizer_, group, parameter, std::move(state));
  }

  // --- parameter groups, in either form that Python writes -------------------

  // The prefix of the fields of the group that holds `name`, or "".
  static std::string prefix_for(const std::string& name, const Stored& stored) {
    const std::string own = str(kParamGroups, ".", name, ".");
    for (const auto& [key, value] : stored.values) {
      if (key.starts_with(own)) return own;
      if (!is_list_of_names(key) || value.get<Value::List>() == nullptr) {
        continue;
      }
      if (lists(value, name)) {
        return key.substr(0, key.size() - std::string("params").size());
      }
    }
    return "";
  }

  static Value fields_at(const std::string& prefix, const Stored& stored) {
    Value::Pairs pairs;
    for (auto at = stored.values.lower_bound(prefix);
         at != stored.values.end() && at->first.starts_with(prefix); ++at) {
      pairs.emplace_back(at->first.substr(prefix.size()), at->second);
    }
    return Value::dict(std::move(pairs));
  }

  void set_fields(OptimizerParamGroup& group, const Stored& stored) const {
    Value fields;
    std::string first;
    for (const at::Tensor& parameter : group.params()) {
      const std::string& name = name_of(parameter);
      const std::string prefix = prefix_for(name, stored);
      if (prefix.empty()) continue;
      const Value found = fields_at(prefix, stored);
      if (fields.is_none()) {
        fields = found;
        first = name;
        continue;
      }
      require<CheckpointError>(same_options(fields, found), [&] {
        return str("checkpoint: parameters '", first, "' and '", name,
                   "' are in one group of this optimizer, but were saved with "
                   "different options.");
      });
    }
    if (!fields.is_none()) set_group_fields(group, fields);
  }

  static bool same_options(const Value& a, const Value& b) {
    for (const auto& [key, value] : a.pairs()) {
      if (key == Value("params")) continue;
      const Value* other = b.find(key.as_text());
      if (other == nullptr || !(*other == value)) return false;
    }
    return true;
  }

  torch::nn::Module& model_;
  torch::optim::Optimizer& optimizer_;
  std::unordered_map<const c10::TensorImpl*, std::string> names_;
};

}  // namespace

std::shared_ptr<Stateful> optimizer_state(torch::nn::Module& model,
                                          torch::optim::Optimizer& optimizer) {
  return std::make_shared<OptimizerState>(model, optimizer);
}

}  // namespace tessera
