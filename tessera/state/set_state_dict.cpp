#include "tessera/state/set_state_dict.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <functional>
#include <set>

#include "tessera/base/error.h"
#include "tessera/shard/find_units.h"
#include "tessera/shard/parameter_group.h"
#include "tessera/shard/unit.h"
#include "tessera/state/assign_state.h"
#include "tessera/state/optimizer_fields.h"
#include "tessera/state/optimizer_forms.h"
#include "tessera/state/state.h"

namespace tessera {
namespace {

Targets model_targets(torch::nn::Module& model, const StateDict& layout) {
  Targets targets{.tensors = model_state(model)->state_dict(), .report = {}};
  std::set<std::string> own;
  for (const StateEntry& entry : targets.tensors) {
    own.insert(key_of(entry.path));
  }
  std::set<std::string> given;
  for (const StateEntry& entry : layout) given.insert(key_of(entry.path));
  std::ranges::set_difference(own, given,
                              std::back_inserter(targets.report.missing));
  std::ranges::set_difference(given, own,
                              std::back_inserter(targets.report.unexpected));
  return targets;
}

// A shard of a model that was built on the meta device has memory, but no
// values until something gives them.
void require_values(torch::nn::Module& model,
                    const std::vector<std::string>& missing) {
  const std::set<std::string> left_out(missing.begin(), missing.end());
  for (const auto& item : model.named_parameters()) {
    if (!item.value().defined() || !left_out.contains(item.key())) continue;
    const auto unit = unit_of(item.value());
    const bool has_values =
        unit == nullptr ||
        std::ranges::all_of(unit->groups(),
                            [](const auto& g) { return g->has_values(); });
    require<InvalidState>(has_values, [&] {
      return str("parameter '", item.key(),
                 "' has no values yet, and the dict gives none. Call "
                 "materialize first.");
    });
  }
}

Stored stored_of(const StateDict& layout) {
  Stored stored;
  for (const StateEntry& entry : layout) {
    const std::string key = key_of(entry.path);
    if (const auto* value = std::get_if<Value>(&entry.leaf)) {
      stored.values[key] = *value;
      stored.value_paths[key] = entry.path;
    } else {
      stored.tensors.insert(key);
    }
  }
  return stored;
}

// The optimizers of one call. Until `keep`, their options come back as they
// were.
class OptimizerTargets {
 public:
  OptimizerTargets(torch::nn::Module& model, const Optimizers& optimizers)
      : optimizers_(optimizers) {
    for (torch::optim::Optimizer* optimizer : optimizers_) {
      parts_.push_back(optimizer_state(model, *optimizer));
    }
    for_groups([&](auto& group) { before_.push_back(group_fields(group)); });
  }
  ~OptimizerTargets() {
    if (kept_) return;
    try {
      size_t i = 0;
      for_groups([&](auto& group) {
        set_group_fields(group, Value::dict(before_[i++]));
      });
    } catch (const std::exception&) {
      // They were read from these very groups; nothing is left to be done.
    }
  }
  OptimizerTargets(const OptimizerTargets&) = delete;
  OptimizerTargets& operator=(const OptimizerTargets&) = delete;

  Targets find(const StateDict& layout) {
    const Stored stored = stored_of(layout);
    Targets targets;
    std::set<std::string> expected;
    std::set<std::string> known;  // parameters
    for (const auto& part : parts_) {
      // Sets the options first: they say which state there is.
      for (StateEntry& entry : part->targets(stored)) {
        expected.insert(key_of(entry.path));
        targets.tensors.push_back(std::move(entry));
      }
      const StateDict own = part->state_dict();
      for (const StateEntry& entry : own) {
        if (std::holds_alternative<StateTensor>(entry.leaf)) {
          expected.insert(key_of(entry.path));
        }
      }
      known.merge(parameters_with_options(own));
    }
    std::ranges::set_difference(expected, stored.tensors,
                                std::back_inserter(targets.report.missing));
    std::ranges::set_difference(stored.tensors, expected,
                                std::back_inserter(targets.report.unexpected));
    compare_options(known, parameters_with_options(layout), targets.report);
    return targets;
  }

  void keep(const Assigned& assigned) {
    kept_ = true;
    const Stored stored = stored_of(assigned.layout);
    for (const auto& part : parts_) {
      part->loaded(assigned.targets.tensors, stored);
    }
  }

 private:
  void for_groups(const std::function<void(torch::optim::OptimizerParamGroup&)>&
                      body) const {
    for (torch::optim::Optimizer* optimizer : optimizers_) {
      for (auto& group : optimizer->param_groups()) body(group);
    }
  }

  static void compare_options(const std::set<std::string>& own,
                              const std::set<std::string>& given,
                              KeyReport& report) {
    const auto note = [](const std::set<std::string>& a,
                         const std::set<std::string>& b,
                         std::vector<std::string>& keys) {
      for (const std::string& name : a) {
        if (!b.contains(name)) keys.push_back("param_groups of " + name);
      }
    };
    note(own, given, report.missing);
    note(given, own, report.unexpected);
  }

  Optimizers optimizers_;
  std::vector<std::shared_ptr<Stateful>> parts_;
  std::vector<Value::Pairs> before_;
  bool kept_ = false;
};

}  // namespace

KeyReport set_model_state_dict(torch::nn::Module& model, const StateDict& dict,
                               const StateDictOptions& options) {
  const at::NoGradGuard no_grad;
  return assign_state(model, "set_model_state_dict", dict, options,
                      [&](const StateDict& layout) {
                        Targets targets = model_targets(model, layout);
                        if (!options.strict) {
                          require_values(model, targets.report.missing);
                        }
                        return targets;
                      })
      .targets.report;
}

KeyReport set_optimizer_state_dict(torch::nn::Module& model,
                                   const Optimizers& optimizers,
                                   const StateDict& dict,
                                   const StateDictOptions& options) {
  const at::NoGradGuard no_grad;
  OptimizerTargets targets(model, optimizers);
  const Assigned assigned = assign_state(
      model, "set_optimizer_state_dict", dict, options,
      [&](const StateDict& layout) { return targets.find(layout); });
  targets.keep(assigned);
  return assigned.targets.report;
}

KeyReport set_optimizer_state_dict(torch::nn::Module& model,
                                   torch::optim::Optimizer& optimizer,
                                   const StateDict& dict,
                                   const StateDictOptions& options) {
  return set_optimizer_state_dict(model, Optimizers{&optimizer}, dict, options);
}

KeyReport set_state_dict(torch::nn::Module& model, const Optimizers& optimizers,
                         const StateDicts& dicts,
                         const StateDictOptions& options) {
  KeyReport report = set_model_state_dict(model, dicts.model, options);
  (void)set_optimizer_state_dict(model, optimizers, dicts.optimizer, options);
  return report;
}

}  // namespace tessera
