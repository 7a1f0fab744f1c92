// What the engine holds as a planned step goes on: plan.h's units as those of
// shard/resident_bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/shard/resident_bytes.h"
#include "tessera/train/plan.h"

namespace tessera::train {

/// Bytes of an element of full parameters; of gradients while they are summed.
[[nodiscard]] int64_t compute_bytes(const PlanOptions& o);
[[nodiscard]] int64_t reduce_bytes(const PlanOptions& o);
/// Whether gathers and reduce-scatters go by copy engines.
[[nodiscard]] bool goes_by_copy_engines(const PlanOptions& o);
/// Of an element of a whole gradient that is sent to be summed.
[[nodiscard]] int64_t sent_bytes(const PlanOptions& o);

/// A CPU has no other memory to offload to.
[[nodiscard]] Masters masters_of(const PlanOptions& o);

/// Of one unit. Matrices that travel in float8 are apart from vectors.
[[nodiscard]] std::vector<GroupMemory> groups_of(const UnitShapes& unit,
                                                 const PlanOptions& o);

[[nodiscard]] bool is_block(const std::string& unit);

/// Without activations. Unit 0 is the root; the others are visited one after
/// the other, and the root, which has the last norm, before the head.
struct StepPlan {
  StepMemory step;
  std::vector<size_t> plan_index;  // into the plan's units, of each of the
                                   // step's
};
[[nodiscard]] StepPlan plan_step(const std::vector<UnitPlan>& units,
                                 const PlanOptions& o);

}  // namespace tessera::train
