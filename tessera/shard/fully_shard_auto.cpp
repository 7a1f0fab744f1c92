#include "tessera/shard/fully_shard_auto.h"

#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <typeinfo>
#include <unordered_set>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/module/gated_storage.h"
#include "tessera/module/traversal.h"
#include "tessera/shard/check_module.h"
#include "tessera/shard/check_precision.h"
#include "tessera/shard/find_units.h"
#include "tessera/shard/fully_shard.h"

namespace tessera {
namespace {

using Module = torch::nn::Module;

bool is_bare_list(const Module& module) {
  return module.as<torch::nn::ModuleList>() ||
         module.as<torch::nn::ModuleDict>();
}

/// Asks the policy about every module, and checks what fully_shard would.
class UnitPlanner {
 public:
  UnitPlanner(const UnitPolicy& policy, const FullyShardOptions& options)
      : policy_(policy), options_(options) {}

  void visit(Module& module, const std::string& name, const Module* parent) {
    if (!seen_.insert(&module).second) return;
    for (const auto& child : module.named_children()) {
      if (!child.value()) continue;
      visit(*child.value(), join_names(name, child.key()), &module);
    }
    if (parent) {
      decide(module, name, *parent);
    } else {
      take(module, name);
    }
  }

  struct Chosen {
    std::string name;
    Module* module;
  };
  /// Bottom-up; the root at the end, if anything is left for it.
  [[nodiscard]] const std::vector<Chosen>& chosen() const { return chosen_; }
  [[nodiscard]] size_t num_asked() const { return num_asked_; }
  [[nodiscard]] size_t num_matched() const { return num_matched_; }

 private:
  void decide(Module& module, const std::string& name, const Module& parent) {
    const bool sharded = is_fully_sharded(module);
    const int64_t numel = numel_of(module);
    if (numel < 0 && !sharded) return;
    ++num_asked_;
    if (!policy_({name, module, parent, std::max<int64_t>(numel, 0)})) return;
    ++num_matched_;
    require<InvalidState>(!sharded, [&] {
      return str("fully_shard_auto: the policy chooses '", name,
                 "', which is sharded already. Shard it by hand or by the "
                 "policy, not by both.");
    });
    require<InvalidArgument>(!is_bare_list(module), [&] {
      return str("fully_shard_auto: the policy chooses '", name, "', a ",
                 module.name(),
                 ", which is a mere list: as one unit all its elements would "
                 "be gathered together. Choose its elements, or call "
                 "fully_shard on it by hand if you mean it.");
    });
    take(module, name);
  }

  void take(Module& module, const std::string& name) {
    const auto own = untaken(module);
    if (own.empty()) return;
    check_parameters(own);
    check_precision(own, options_.mp_policy);
    check_holders(own);
    for (const FoundParameter& found : own) {
      taken_.insert(found.tensor.unsafeGetTensorImpl());
    }
    chosen_.push_back({name, &module});
  }

  /// Of the untaken parameters; -1 when there is none.
  [[nodiscard]] int64_t numel_of(Module& module) const {
    int64_t numel = 0;
    const auto own = untaken(module);
    for (const FoundParameter& found : own) numel += found.tensor.numel();
    return own.empty() ? -1 : numel;
  }

  [[nodiscard]] std::vector<FoundParameter> untaken(Module& module) const {
    Module* const roots[] = {&module};
    auto parameters = find_parameters(roots);
    std::erase_if(parameters, [&](const FoundParameter& found) {
      return taken_.contains(found.tensor.unsafeGetTensorImpl()) ||
             gated_storage_of(found.tensor) || is_ignored(found.tensor);
    });
    return parameters;
  }

  [[nodiscard]] bool is_ignored(const at::Tensor& tensor) const {
    return std::any_of(
        options_.ignored_params.begin(), options_.ignored_params.end(),
        [&](const at::Tensor& ignored) { return ignored.is_same(tensor); });
  }

  const UnitPolicy& policy_;
  const FullyShardOptions& options_;
  std::unordered_set<const Module*> seen_;
  std::unordered_set<const c10::TensorImpl*> taken_;
  std::vector<Chosen> chosen_;
  size_t num_asked_ = 0;
  size_t num_matched_ = 0;
};

void check_root(Module& model, const FullyShardOptions& options) {
  check_options(options);
  Module* const roots[] = {&model};
  check_modules(roots, options.ignored_params);
  require<InvalidState>(!is_fully_sharded(model), [&] {
    return str("fully_shard_auto: the model (", model.name(),
               ") is sharded already.");
  });
  for (const auto& unit : units_below(model)) {
    require<InvalidState>(!unit->covers(&model), [&] {
      return str("fully_shard_auto: the model (", model.name(),
                 ") lies inside unit '", unit->name(),
                 "', which has taken its parameters already.");
    });
  }
}

void log_units(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    text += str(text.empty() ? "" : ", ", name.empty() ? "(root)" : name);
  }
  log_info("fully_shard_auto: ", names.size(), " units: ", text);
}

}  // namespace

std::vector<std::string> fully_shard_auto(Module& model,
                                          const UnitPolicy& policy,
                                          const FullyShardOptions& options) {
  require<InvalidArgument>(policy != nullptr, [] {
    return str(
        "fully_shard_auto: the policy is empty; give a function, such "
        "as units_by_repeated_children().");
  });
  check_root(model, options);
  UnitPlanner planner(policy, options);
  planner.visit(model, "", nullptr);
  require<InvalidArgument>(planner.num_matched() > 0, [&] {
    return str("fully_shard_auto: the policy chooses none of the ",
               planner.num_asked(), " modules with parameters below ",
               model.name(),
               ", so all would be one unit, gathered at once. Choose another "
               "policy, or call fully_shard(model) if you mean one unit.");
  });
  std::vector<std::string> names;
  for (const auto& [name, module] : planner.chosen()) {
    if (module != &model) fully_shard(*module, options);
    names.push_back(name);
  }
  // Also when nothing is left for it: this joins the units into one tree.
  fully_shard(model, options);
  log_units(names);
  return names;
}

UnitPolicy units_by_repeated_children(int64_t at_least) {
  require<InvalidArgument>(at_least >= 1, [&] {
    return str("units_by_repeated_children: at_least is ", at_least,
               "; give 1 or more.");
  });
  return [at_least](const UnitCandidate& candidate) {
    if (!candidate.parent.as<torch::nn::ModuleList>() &&
        !candidate.parent.as<torch::nn::Sequential>()) {
      return false;
    }
    const auto siblings = candidate.parent.children();
    const auto num_alike = std::count_if(
        siblings.begin(), siblings.end(), [&](const auto& sibling) {
          const Module* other = sibling.get();
          return other && typeid(*other) == typeid(candidate.module);
        });
    return num_alike >= at_least;
  };
}

UnitPolicy units_by_size(int64_t min_numel) {
  require<InvalidArgument>(min_numel >= 1, [&] {
    return str("units_by_size: min_numel is ", min_numel, "; give 1 or more.");
  });
  return [min_numel](const UnitCandidate& candidate) {
    return candidate.numel >= min_numel && !is_bare_list(candidate.module);
  };
}

}  // namespace tessera
