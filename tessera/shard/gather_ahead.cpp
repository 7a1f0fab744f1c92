#include "tessera/shard/gather_ahead.h"

#include <algorithm>
#include <utility>

#include "tessera/shard/context.h"
#include "tessera/shard/unit.h"

namespace tessera {

GatherOrder& GatherAhead::order_of(Pass pass) {
  switch (pass) {
    case Pass::forward:
      return forward_;
    case Pass::evaluation:
      return evaluation_;
    case Pass::backward:
      break;
  }
  return backward_;
}

namespace {

std::string_view phase_of(GatherAhead::Pass pass) {
  return pass == GatherAhead::Pass::backward ? "backward" : "forward";
}

}  // namespace

void GatherAhead::bring(Unit& unit, Pass pass, std::string_view op, Next next) {
  if (!expects(unit) && unit.gathered() && !unit.stale() && !unit.gathering())
    return;
  if (late_ != &unit) start_late();
  const auto ahead = std::find(expected_.begin(), expected_.end(), &unit);
  const bool expected = ahead != expected_.end();
  // Those before it were expected in vain.
  for (auto other = expected_.begin(); other != ahead; ++other) {
    (*other)->reshard();
  }
  expected_.erase(expected_.begin(), expected ? ahead + 1 : ahead);
  unit.gather(phase_of(pass), op);
  GatherOrder& order = order_of(pass);
  const size_t index = index_of(unit);
  // Nothing else marks the end of a forward pass without backward.
  if (pass == Pass::evaluation && order.began_with(index)) order.end_pass();
  order.note(index);
  if (next == Next::late_at_the_end && order.in_last_third()) {
    late_ = &unit;
  } else {
    start_next(unit, pass);
  }
}

void GatherAhead::start_late(const Unit& unit) {
  if (late_ == &unit) start_late();
}

void GatherAhead::start_late() {
  if (const Unit* unit = std::exchange(late_, nullptr)) {
    start_next(*unit, Pass::backward);
  }
}

void GatherAhead::start_next(const Unit& unit, Pass pass) {
  for (Unit* next : next_after(unit, pass)) {
    if (next->gathered() || next->lanes()->size() == 1) continue;
    next->start_gather(phase_of(pass), "prefetch");
    expected_.push_back(next);
  }
}

// The user's list, or what an earlier pass has shown.
std::vector<Unit*> GatherAhead::next_after(const Unit& unit, Pass pass) {
  const auto& listed = pass == Pass::backward ? unit.prefetch_in_backward
                                              : unit.prefetch_in_forward;
  std::vector<Unit*> next;
  for (const auto& one : listed) {
    const auto alive = one.lock();
    if (alive && index_of(*alive) < units_.size()) next.push_back(alive.get());
  }
  if (!listed.empty()) return next;
  for (const size_t index :
       order_of(pass).ahead(*unit.options().prefetch, small())) {
    next.push_back(units_[index]);
  }
  return next;
}

size_t GatherAhead::index_of(const Unit& unit) const {
  return std::find(units_.begin(), units_.end(), &unit) - units_.begin();
}

bool GatherAhead::expects(const Unit& unit) const {
  return std::find(expected_.begin(), expected_.end(), &unit) !=
         expected_.end();
}

const SmallUnits& GatherAhead::small() {
  if (small_.size() != units_.size()) {
    std::vector<int64_t> bytes;
    for (const Unit* unit : units_) bytes.push_back(unit->full_bytes());
    small_ = small_units(bytes);
  }
  return small_;
}

bool GatherAhead::keep_for_backward(Unit& unit) {
  const size_t prefetch = *unit.options().prefetch;
  if (!unit.gathered() || !forward_.ends_within(prefetch, small()) ||
      !backward_.starts_with(index_of(unit), prefetch, small())) {
    return false;
  }
  if (std::find(kept_.begin(), kept_.end(), &unit) == kept_.end()) {
    kept_.push_back(&unit);
  }
  return true;
}

void GatherAhead::begin_backward() {
  // Left one after the other, wanted the other way round.
  std::reverse(kept_.begin(), kept_.end());
  for (Unit* unit : std::exchange(expected_, std::exchange(kept_, {}))) {
    if (!expects(*unit)) unit->reshard();
  }
}

void GatherAhead::end_pass() {
  expected_.clear();
  late_ = nullptr;
  kept_.clear();
  forward_.end_pass();
  backward_.end_pass();
}

void GatherAhead::drop_pass() noexcept {
  expected_.clear();
  late_ = nullptr;
  kept_.clear();
  forward_.drop_pass();
  backward_.drop_pass();
}

void GatherAhead::remove(const Unit& unit) noexcept {
  if (late_ == &unit) late_ = nullptr;
  for (auto* list : {&expected_, &kept_}) {
    list->erase(std::remove(list->begin(), list->end(), &unit), list->end());
  }
}

void GatherAhead::forget_orders() {
  for (Unit* unit : std::exchange(expected_, {})) unit->reshard();
  late_ = nullptr;
  kept_.clear();
  small_.clear();
  forward_.clear();
  evaluation_.clear();
  backward_.clear();
}

}  // namespace tessera
