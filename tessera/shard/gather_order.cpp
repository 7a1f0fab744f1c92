#include "tessera/shard/gather_order.h"

#include <algorithm>
#include <utility>

namespace tessera {
namespace {

// A program that never ends a pass (forwards with gradients on and no backward)
// must not fill the memory.
constexpr size_t kLongestPass = 1 << 16;

}  // namespace

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

std::vector<size_t> GatherOrder::ahead(size_t count) const {
  if (!follows_ || pass_.empty()) return {};
  const auto next = learned_.begin() + static_cast<ptrdiff_t>(pass_.size());
  const auto left = static_cast<size_t>(learned_.end() - next);
  return {next, next + static_cast<ptrdiff_t>(std::min(count, left))};
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
