#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/shard/context.h"
#include "tessera/shard/group_norms.h"
#include "tessera/shard/unit.h"

// Gradients of a unit: as they come, reduced, stepped.

namespace tessera {

bool Unit::trainable() const {
  return std::any_of(groups_.begin(), groups_.end(), [](const auto& group) {
    return group->num_trainable() > 0;
  });
}

bool Unit::holds_gradients() const {
  return std::any_of(groups_.begin(), groups_.end(), [](const auto& group) {
    return group->gradients().held().any();
  });
}

bool Unit::waits_for_replicas() const {
  return std::any_of(groups_.begin(), groups_.end(), [](const auto& group) {
    return group->lanes()->all_reduce && !group->gradients().all_reduce;
  });
}

bool Unit::complete() const {
  size_t awaited = 0;
  for (const auto& group : groups_) awaited += group->num_trainable();
  return num_arrived_ >= awaited;
}

void Unit::on_gradient(size_t g, size_t i) {
  context_->ensure_backward();
  ParameterGroup& group = *groups_[g];
  at::Tensor full = group.full(i);
  at::Tensor grad = std::move(full.mutable_grad());
  full.mutable_grad().reset();
  if (!grad.defined() || !group.trainable(i)) return;
  require<Unsupported>(!grad.requires_grad(), [&] {
    return str("backward with create_graph: the gradient of parameter '",
               group.name(i),
               "' would carry a graph, which its shard's "
               "gradient cannot. Use torch::autograd::grad on the inputs or on "
               "the module's members for the part to differentiate again.");
  });
  if (pass.reduced) step.note_late_use(name_);
  context_->note_part(*this);
  context_->note_gradient();
  group.gradients().held().hold(i, std::move(grad));
  if (!arrived_[g][i]) {
    arrived_[g][i] = true;
    ++num_arrived_;
  }
  if (!complete()) return;
  // Before its reduction, on all ranks.
  context_->start_late_gathers(*this);
  release_on_completion();
  if (gradient_sync) context_->issue_reductions();
}

void Unit::release_on_completion() {
  if (release != Release::on_completion || !reshard_after_backward ||
      !gathered()) {
    return;
  }
  reshard();
  pass.released = true;
}

bool Unit::has_all_gradients() const {
  if (!pass.took_part || !gradient_sync) return true;
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (size_t i = 0; i < groups_[g]->size(); ++i) {
      if (groups_[g]->trainable(i) && !reduced_gradients_[g][i]) return false;
    }
  }
  return true;
}

void Unit::start_reduce() {
  const auto memory = step.is_set() ? OutputMemory::reduce_stream
                                    : OutputMemory::compute_stream;
  for (size_t g = 0; g < groups_.size(); ++g) {
    ParameterGroup& group = *groups_[g];
    if (group.num_trainable() == 0) continue;
    for (size_t i = 0; i < group.size(); ++i) {
      if (group.gradients().held().has(i)) reduced_gradients_[g][i] = true;
    }
    group.gradients().takes_norms = takes_norms();
    group.gradients().start(memory, label("backward", ""));
  }
  pass.reduced = true;
  ++counts_.reduces;
}

void Unit::go_on_with_reduce() {
  // On CPU it would wait here for ranks that lack a gradient of this unit: they
  // take part at the end of backward only, and that needs this rank's gathers.
  if (!lanes()->device.is_cpu()) {
    for (const auto& group : groups_) {
      group->gradients().go_on(label("backward", ""));
    }
  }
  step_early();
}

void Unit::free_reduce_inputs() {
  for (const auto& group : groups_) group->gradients().free_inputs();
}

void Unit::finish_reduce(const std::vector<std::vector<bool>>& had_gradient) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    groups_[g]->gradients().finish(had_gradient[g], label("backward", ""));
  }
}

void Unit::keep_norms() {
  if (!takes_norms()) return;
  const bool may_change = std::any_of(
      groups_.begin(), groups_.end(),
      [](const auto& group) { return has_hook_behind_a_gradient(*group); });
  for (const auto& group : groups_) {
    if (may_change) {
      group->master()->forget_grad_norms();
    } else {
      tessera::keep_norms(*group);
    }
  }
}

void Unit::step_early() {
  if (!pass.reduced || !gradient_sync || !complete() || !step.may_run_early()) {
    return;
  }
  for (const auto& group : groups_) {
    // Where every rank holds all of it, the sum is in the compute stream's
    // memory, which that stream may hand out again before the step has read it.
    if (group->layout().world_size() == 1) return;
    if (!group->gradients().unobserved()) return;
    // Gradients of a pass before this step was set, likewise.
    if (group->master()->grad().defined()) return;
  }
  const auto& lanes = *this->lanes();
  StreamScope scope(lanes.all_reduce ? lanes.all_reduce_stream
                                     : lanes.reduce_stream);
  finish_reduce(reduced_gradients_);
  step.run(groups_);
}

void Unit::step_at_end() {
  if (!step.is_set()) return;
  step.run(groups_);
  step.join(current_stream(lanes()->device));
}

void Unit::end_pass() {
  step.end_pass(pass.reduced);
  reads.end_pass();
  for (size_t g = 0; g < groups_.size(); ++g) {
    arrived_[g].assign(arrived_[g].size(), false);
    reduced_gradients_[g].assign(arrived_[g].size(), false);
    if (!gradient_sync) {
      groups_[g]->gradients().held().settle();
    } else if (groups_[g]->num_trainable() == 0) {
      // Frozen since: it would turn up in the step that unfreezes it.
      groups_[g]->gradients().drop_waiting();
    }
  }
  num_arrived_ = 0;
  // What was not reduced to the end now must be by the next pass that is, also
  // where that one does not use this unit.
  const bool waiting =
      pass.took_part && (!gradient_sync || waits_for_replicas());
  pass = {};
  pass.took_part = waiting;
}

void Unit::abandon_pass() noexcept {
  step.abandon_pass();
  reads.drop_pass();
  for (const auto& group : groups_) {
    group->gradients().abandon();
    // As on ranks whose pass went well.
    if (!gradient_sync) group->gradients().held().settle();
    for (size_t i = 0; i < group->size(); ++i) {
      at::Tensor full = group->full(i);
      if (full.defined()) full.mutable_grad().reset();
    }
  }
  for (auto& arrived : arrived_) arrived.assign(arrived.size(), false);
  for (auto& had : reduced_gradients_) had.assign(had.size(), false);
  num_arrived_ = 0;
  pass = {};
  reshard();
}

}  // namespace tessera
