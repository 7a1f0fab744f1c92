#include "tessera/shard/gradient_memory.h"

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/fnv_hash.h"
#include "tessera/comm/collective_log.h"
#include "tessera/device/capture.h"
#include "tessera/shard/unit.h"

namespace tessera {

namespace {

int64_t digest_of(const GradientFlags& flags) {
  FnvHash hash;
  for (const auto& unit : flags) {
    for (const auto& group : unit) {
      for (const bool flag : group) hash.add(static_cast<int64_t>(flag));
    }
  }
  return static_cast<int64_t>(hash.value());
}

}  // namespace

GradientFlags GradientMemory::agree(const std::vector<Unit*>& units) {
  if (units.empty()) return {};
  GradientFlags own;
  for (const Unit* unit : units) own.push_back(unit->reduced_gradients());
  const ShardLanes& lanes = *units.front()->lanes();
  if (!capturing(lanes.device)) {
    GradientFlags any = agree_on_gradients(units);
    remember(std::move(own), any);
    return any;
  }
  const GradientFlags& any = recall(own);
  CollectiveLog& log = lanes.control->log();
  log.finish(log.enter("gradients", "recalled", {.phase = "backward"},
                       digest_of(any), c10::kLong));
  return any;
}

void GradientMemory::remember(GradientFlags own, GradientFlags any) {
  std::erase_if(answers_, [&](const Answer& old) { return old.own == own; });
  if (answers_.size() == kKept) answers_.erase(answers_.begin());
  answers_.push_back({std::move(own), std::move(any)});
}

const GradientFlags& GradientMemory::recall(const GradientFlags& own) const {
  const auto answer =
      std::find_if(answers_.begin(), answers_.end(),
                   [&](const Answer& old) { return old.own == own; });
  require<InvalidState>(answer != answers_.end(), [] {
    return str(
        "the captured step has gradients for other parameters than each step "
        "before it. A captured step must do the same every time; run more "
        "steps before it is captured (warmup), or take the branch out.");
  });
  return answer->any;
}

}  // namespace tessera
