#include "tessera/shard/gather_order.h"

#include <algorithm>
#include <utility>

namespace tessera {
namespace {

// A program that never ends a pass (forwards with gradients on and no backward)
// must not fill the memory.
constexpr size_t kLongestPass = 1 << 16;

constexpr int64_t kSmall = 16;  // times as many bytes has the largest

}  // namespace

SmallUnits small_units(std::span<const int64_t> bytes) {
  int64_t largest = 0;
  for (const int64_t each : bytes) largest = std::max(largest, each);
  SmallUnits small;
  for (const int64_t each : bytes) small.push_back(each < largest / kSmall);
  return small;
}

void GatherOrder::note(size_t unit) {
  if (pass_.size() == kLongestPass) clear();
  const size_t position = pass_.size();
  follows_ =
      follows_ && position < learned_.size() && learned_[position] == unit;
  pass_.push_back(unit);
}

bool GatherOrder::began_with(size_t unit) const {
  return !pass_.empty() && pass_.front() == unit;
}

bool GatherOrder::in_last_third() const {
  return follows_ && !pass_.empty() &&
         (learned_.size() - pass_.size()) * 3 <= learned_.size();
}

std::vector<size_t> GatherOrder::first_from(size_t position, size_t count,
                                            const SmallUnits& small) const {
  std::vector<size_t> units;
  for (; position < learned_.size() && count > 0; ++position) {
    units.push_back(learned_[position]);
    if (!small[learned_[position]]) --count;
  }
  return units;
}

std::vector<size_t> GatherOrder::ahead(size_t count,
                                       const SmallUnits& small) const {
  if (!follows_ || pass_.empty()) return {};
  return first_from(pass_.size(), count, small);
}

bool GatherOrder::ends_within(size_t count, const SmallUnits& small) const {
  if (!follows_ || pass_.empty()) return false;
  for (size_t i = pass_.size(); i < learned_.size(); ++i) {
    if (!small[learned_[i]] && count-- == 0) return false;
  }
  return true;
}

bool GatherOrder::starts_with(size_t unit, size_t count,
                              const SmallUnits& small) const {
  const auto first = first_from(0, count, small);
  return std::find(first.begin(), first.end(), unit) != first.end();
}

void GatherOrder::end_pass() {
  if (!pass_.empty()) learned_ = std::exchange(pass_, {});
  follows_ = true;
}

void GatherOrder::drop_pass() {
  pass_.clear();
  follows_ = true;
}

void GatherOrder::clear() {
  learned_.clear();
  drop_pass();
}

}  // namespace tessera
