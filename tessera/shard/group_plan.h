// What the parts of one group agree on: dtypes, layout, and which piece of each
// parameter this rank owns.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/module/traversal.h"
#include "tessera/shard/custom_collectives.h"
#include "tessera/shard/flat_layout.h"
#include "tessera/shard/lanes.h"
#include "tessera/shard/options.h"

namespace tessera {

/// How the parameters of a unit are spread over the ranks of its mesh.
enum class Strategy {
  shard,      // each rank owns a part; gather and reduce-scatter
  replicate,  // each rank owns all; all-reduce of the gradients
};

struct GroupOptions {
  Strategy strategy = Strategy::shard;
  c10::ScalarType master_dtype = c10::kFloat;
  c10::ScalarType compute_dtype = c10::kFloat;
  c10::ScalarType reduce_dtype = c10::kFloat;
  // The neighbours that keep the full parameters together between forward and
  // backward; null when none do.
  std::shared_ptr<Communicator> keepers = {};
  Debug debug = Debug::none;
};

struct GroupPlan {
  GroupPlan(const std::vector<FoundParameter>& parameters,
            const GroupOptions& options,
            std::shared_ptr<const ShardLanes> lanes);

  GroupOptions options;
  std::shared_ptr<const ShardLanes> lanes;
  FlatLayout layout;
  std::vector<std::vector<int64_t>> sizes;  // of the full parameters
  std::vector<LocalPiece> pieces;           // of this rank
  // Null: the communicator's own.
  std::shared_ptr<AllGather> all_gather;
  std::shared_ptr<ReduceScatter> reduce_scatter;

  /// This rank's place in the layout.
  [[nodiscard]] int64_t layout_rank() const;
  [[nodiscard]] std::vector<int64_t> shard_sizes(size_t i) const;
  [[nodiscard]] int64_t full_bytes() const;
};

}  // namespace tessera
