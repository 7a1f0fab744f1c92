#include "tessera/shard/full_parameters.h"

#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <unordered_map>

#include "tessera/base/error.h"
#include "tessera/module/gate.h"
#include "tessera/shard/context.h"
#include "tessera/shard/find_units.h"

namespace tessera {

// One unit whose members and dictionary entries show whole tensors for now.
struct FullParameters::Shown {
  std::shared_ptr<Unit> unit;
  std::vector<std::vector<at::Tensor>> whole;  // by group
  // Of the groups: no tensor holds them meanwhile.
  std::vector<c10::Storage> storages;
  // Dictionary entries that hold a full parameter meanwhile, and the shard that
  // goes back.
  std::vector<std::pair<ParameterOwner, at::Tensor>> entries;
};

namespace {

void check_circumstances(const std::shared_ptr<Unit>& unit) {
  require<InvalidState>(!c10::InferenceMode::is_enabled(), [] {
    return str(
        "FullParameters: inside InferenceMode, where it would make "
        "tensors that can never train; open the scope outside.");
  });
  require<InvalidState>(!unit->context()->backward_running(), [&] {
    return str("FullParameters: a backward pass through unit '", unit->name(),
               "' is running.");
  });
}

}  // namespace

FullParameters::FullParameters(torch::nn::Module& module, Write write)
    : write_(write) {
  for (auto& unit : units_below(module)) {
    show(module, std::move(unit), FullBuffer::Values::gathered);
  }
}

FullParameters::FullParameters(torch::nn::Module& module,
                               std::shared_ptr<Unit> unit,
                               FullBuffer::Values values)
    : write_(Write::keep) {
  show(module, std::move(unit), values);
}

void FullParameters::show(torch::nn::Module& module, std::shared_ptr<Unit> unit,
                          FullBuffer::Values values) {
  check_circumstances(unit);
  unit->reshard();
  unit->context()->forget(*unit);
  auto shown = std::make_unique<Shown>();
  shown->unit = unit;
  std::unordered_map<c10::TensorImpl*, at::Tensor> full_of;
  torch::NoGradGuard no_grad;
  GateOff off;
  for (const auto& group : unit->groups()) {
    auto& whole = shown->whole.emplace_back(group->full_buffer().whole(
        values, {.unit = unit->name(), .phase = "FullParameters", .op = ""}));
    for (size_t i = 0; i < group->size(); ++i) {
      at::Tensor full = group->full(i);
      if (full.defined()) {
        shown->storages.push_back(full.storage());
        full.set_data(whole[i]);
      } else {
        full = whole[i];  // no member holds it: it stands in a dictionary only
      }
      full_of.emplace(group->shard(i).unsafeGetTensorImpl(), full);
    }
  }
  torch::nn::Module* const roots[] = {&module};
  for (const FoundParameter& found : find_parameters(roots)) {
    const auto at = full_of.find(found.tensor.unsafeGetTensorImpl());
    if (at == full_of.end()) continue;
    for (const ParameterOwner& owner : found.owners) {
      shown->entries.emplace_back(owner, found.tensor);
      set_entry(owner, at->second);
    }
  }
  shown_.push_back(std::move(shown));
}

// The member's own data, should it have been replaced meanwhile.
at::Tensor FullParameters::value(const ParameterGroup& group, size_t i) const {
  for (const auto& shown : shown_) {
    const auto& groups = shown->unit->groups();
    for (size_t g = 0; g < groups.size(); ++g) {
      if (groups[g].get() != &group) continue;
      const at::Tensor& whole = shown->whole[g][i];
      const at::Tensor full = group.full(i);
      const bool usable = full.defined() && full.sizes() == whole.sizes();
      return usable ? full.detach() : whole;
    }
  }
  return {};
}

FullParameters::~FullParameters() {
  torch::NoGradGuard no_grad;
  GateOff off;
  for (const auto& shown : shown_) {
    for (const auto& [owner, shard] : shown->entries) set_entry(owner, shard);
    for (const auto& group : shown->unit->groups()) {
      std::vector<at::Tensor> values;
      for (size_t i = 0; i < group->size(); ++i) {
        values.push_back(value(*group, i));
      }
      for (size_t i = 0; i < group->size(); ++i) {
        if (group->full(i).defined()) group->full_buffer().point_at_storage(i);
      }
      if (write_ == Write::keep) group->store(values);
    }
  }
}

}  // namespace tessera
