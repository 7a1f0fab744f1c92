#include "tessera/shard/gather_timeline.h"

#include <algorithm>
#include <utility>

namespace tessera {

GatherTimeline::GatherTimeline(std::vector<int64_t> bytes, size_t prefetch,
                               BackwardOverlap overlap)
    : small_(small_units(bytes)), prefetch_(prefetch), overlap_(overlap) {
  for (const int64_t each : bytes) units_.push_back({.bytes = each});
}

int64_t GatherTimeline::gather(State& state) {
  if (std::exchange(state.gathered, true)) return 0;
  ++state.num_gathers;
  now_ += state.bytes;
  peak_ = std::max(peak_, now_);
  return state.bytes;
}

int64_t GatherTimeline::bring(size_t unit, Pass pass) {
  State& state = units_[unit];
  const bool was_ahead = std::exchange(state.is_ahead, false);
  if (state.gathered && !was_ahead) return 0;
  int64_t added = gather(state);
  GatherOrder& order = pass == Pass::forward ? forward_ : backward_;
  order.note(unit);
  if (pass == Pass::backward && starts_late()) return added;
  return added + gather_ahead(order);
}

bool GatherTimeline::starts_late() const {
  return overlap_ == BackwardOverlap::tight && backward_.in_last_third();
}

int64_t GatherTimeline::start_next() { return gather_ahead(backward_); }

int64_t GatherTimeline::gather_ahead(const GatherOrder& order) {
  int64_t added = 0;
  for (const size_t next : order.ahead(prefetch_, small_)) {
    if (units_[next].gathered) continue;
    added += gather(units_[next]);
    units_[next].is_ahead = true;
  }
  return added;
}

int64_t GatherTimeline::free(size_t unit) {
  State& state = units_[unit];
  if (state.is_ahead || !std::exchange(state.gathered, false)) return 0;
  now_ -= state.bytes;
  return -state.bytes;
}

int64_t GatherTimeline::leave_forward(size_t unit) {
  State& state = units_[unit];
  if (state.gathered && forward_.ends_within(prefetch_, small_) &&
      backward_.starts_with(unit, prefetch_, small_)) {
    state.is_ahead = true;
  }
  return free(unit);
}

void GatherTimeline::end_step() {
  forward_.end_pass();
  backward_.end_pass();
  peak_ = now_;
  for (State& state : units_) state.num_gathers = 0;
}

std::vector<int64_t> GatherTimeline::num_gathers() const {
  std::vector<int64_t> counts;
  for (const State& state : units_) counts.push_back(state.num_gathers);
  return counts;
}

}  // namespace tessera
