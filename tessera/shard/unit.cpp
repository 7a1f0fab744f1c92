#include "tessera/shard/unit.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/shard/context.h"
#include "tessera/shard/gradient_hook.h"
#include "tessera/shard/step_phase.h"
#include "tessera/shard/step_units.h"

namespace tessera {

Unit::Unit(std::string name, ModuleIds modules, ModuleIds covered,
           const FullyShardOptions& options,
           std::vector<std::unique_ptr<ParameterGroup>> groups)
    : name_(std::move(name)),
      modules_(std::move(modules)),
      covered_(std::move(covered)),
      options_(options),
      groups_(std::move(groups)) {
  std::sort(covered_.begin(), covered_.end());
  for (const auto& group : groups_) {
    arrived_.emplace_back(group->size(), false);
    reduced_gradients_.emplace_back(group->size(), false);
    if (group->a_rank_owns_nothing()) a_rank_owns_nothing_ = true;
  }
}

Unit::~Unit() {
  if (context_) context_->remove(*this);
  if (parent_) --parent_->num_below_;
}

bool Unit::covers(const torch::nn::Module* module) const {
  return std::binary_search(covered_.begin(), covered_.end(), module);
}

void Unit::take_over() {
  for (const auto& group : groups_) group->take_over(shared_from_this());
  install_hooks();
}

void Unit::install_hooks() {
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (size_t i = 0; i < groups_[g]->size(); ++i) {
      const at::Tensor full = groups_[g]->full(i);
      if (!full.defined()) continue;  // registered, but no member holds it
      auto& slot = torch::autograd::impl::post_acc_grad_hooks(full);
      slot = make_gradient_hook(
          [unit = shared_from_this(), g, i] { unit->on_gradient(g, i); },
          std::move(slot));
    }
  }
}

void Unit::set_context(std::shared_ptr<ShardContext> context) {
  context_ = std::move(context);
  if (!lanes()->same_ranks(*context_->lanes())) return;
  for (const auto& group : groups_) group->set_lanes(context_->lanes());
}

void Unit::set_parent(std::shared_ptr<Unit> parent) {
  parent_ = std::move(parent);
  ++parent_->num_below_;
}

bool Unit::is_ancestor_of(const Unit& other) const {
  for (const Unit* unit = &other; unit; unit = unit->parent_.get()) {
    if (unit == this) return true;
  }
  return false;
}

// The gate --------------------------------------------------------------------

void Unit::before_read(const OperatorUse& use) {
  note_unit_read(*this);
  context_->enter(*this, use);
}

void Unit::after_read() noexcept {
  if (!backward_under_way()) clock_.note_read();
  context_->leave();
}

bool Unit::casts_inputs() const {
  return options_.mp_policy.param_dtype.has_value() &&
         options_.mp_policy.cast_forward_inputs == CastInputs::on;
}

at::Tensor Unit::cast_input(const at::Tensor& input) {
  const auto dtype = *options_.mp_policy.param_dtype;
  if (in_backward() || !input.is_floating_point() ||
      input.scalar_type() == dtype || gated_storage_of(input)) {
    return input;
  }
  return cast_(input, dtype);
}

// Full parameters -------------------------------------------------------------

CallLabel Unit::label(std::string_view phase, std::string_view op) const {
  return {.unit = name_, .phase = phase, .op = op};
}

bool Unit::gathered() const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [](const auto& group) { return group->gathered(); });
}

bool Unit::stale() const {
  return std::any_of(groups_.begin(), groups_.end(), [](const auto& group) {
    return group->gathered() && group->stale();
  });
}

bool Unit::written_since_gather() const {
  return std::any_of(groups_.begin(), groups_.end(), [](const auto& group) {
    return group->full_buffer().gathered_version() && group->stale();
  });
}

bool Unit::written_since(const torch::autograd::Node& node) const {
  return clock_.saw_other_values(node);
}

void Unit::gather(std::string_view phase, std::string_view op) {
  start_gather(phase, op);
  for (const auto& group : groups_) group->full_buffer().finish_gather();
}

void Unit::start_gather(std::string_view phase, std::string_view op) {
  if (written_since_gather()) clock_.note_new_values();
  bool started = false;
  const auto from = phase == "backward" ? FullBuffer::From::keepers
                                        : FullBuffer::From::masters;
  for (const auto& group : groups_) {
    if (group->gathered() && group->stale()) group->full_buffer().reshard();
    if (group->gathered()) continue;
    group->full_buffer().start_gather(from, label(phase, op));
    started = true;
  }
  if (!started) return;
  note_unit_gathered(*this);
  ++counts_.gathers;
  context_->note_gather(*this);
}

void Unit::reshard() {
  for (const auto& group : groups_) group->full_buffer().reshard();
  cast_.forget();
}

void Unit::leave_forward() {
  if (kept_after_forward()) return;
  if (options_.reshard_after_forward.ranks() && in_training()) {
    for (const auto& group : groups_) group->full_buffer().reshard_to_keepers();
    cast_.forget();
  } else {
    reshard();
  }
}

bool Unit::gathering() const {
  return std::any_of(groups_.begin(), groups_.end(), [](const auto& group) {
    return group->full_buffer().gathering();
  });
}

bool Unit::kept_after_forward() const {
  switch (options_.reshard_after_forward.policy()) {
    case Reshard::never:
      return true;
    case Reshard::always:
      return false;
    case Reshard::automatic:
      return has_units_below() || context_->units().size() == 1;
  }
  return false;
}

int64_t Unit::full_bytes() const {
  int64_t bytes = 0;
  for (const auto& group : groups_) bytes += group->full_bytes();
  return bytes;
}

}  // namespace tessera
