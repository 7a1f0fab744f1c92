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
  // Where the shards are: the lanes' device, unless offloaded.
  std::optional<CPUOffloadPolicy> offload = {};
  std::shared_ptr<GatherTransform> transform = {};
  GatherCopy gather_copy = GatherCopy::none;
  Debug debug = Debug::none;

  [[nodiscard]] bool keeps_copy() const {
    return gather_copy == GatherCopy::kept && compute_dtype != master_dtype;
  }
};

struct GroupPlan {
  /// `dims[i]`: the dim along which parameter i is cut.
  GroupPlan(const std::vector<FoundParameter>& parameters,
            std::vector<int64_t> dims, const GroupOptions& options,
            std::shared_ptr<const ShardLanes> lanes);

  GroupOptions options;
  std::shared_ptr<const ShardLanes> lanes;
  FlatLayout layout;
  std::vector<std::vector<int64_t>> sizes;  // of the full parameters
  std::vector<int64_t> dims;                // along which they are cut
  std::vector<LocalPiece> pieces;           // of this rank
  // Null: the communicator's own.
  std::shared_ptr<AllGather> all_gather;
  std::shared_ptr<ReduceScatter> reduce_scatter;

  /// This rank's place in the layout.
  [[nodiscard]] int64_t layout_rank() const;
  [[nodiscard]] std::vector<int64_t> shard_sizes(size_t i) const;
  /// Strides of a full parameter or a shard in the flat buffers, where the dim
  /// that is cut comes first; empty when that is contiguous.
  [[nodiscard]] std::vector<int64_t> full_strides(size_t i) const;
  [[nodiscard]] std::vector<int64_t> shard_strides(size_t i) const;
  /// A view of a full parameter, or of a part, whose rows are those of the flat
  /// buffers.
  [[nodiscard]] at::Tensor rows_first(size_t i, const at::Tensor& tensor) const;
  /// The shard-shaped view of this rank's piece of a flat tensor that is laid
  /// out as the master.
  [[nodiscard]] at::Tensor piece_of(size_t i, const at::Tensor& flat) const;
  [[nodiscard]] c10::Device master_device() const;
  [[nodiscard]] c10::Allocator* master_allocator() const;
  [[nodiscard]] int64_t full_bytes() const;
};

}  // namespace tessera
