// The table [shard] of a training config: how a model is spread over the ranks.
//
//   8 ranks, replicas = 2, reshard = 2
//
//   ranks      0 1 2 3        4 5 6 7     each row holds the whole model
//   reshard    0 1 | 2 3      4 5 | 6 7   each pair keeps it until backward
//
// Torch-free.
#pragma once

#include <cstdint>
#include <optional>

#include "tessera/shard/backward_overlap.h"

namespace tessera::train {

class ConfigReader;

enum class Strategy { fully_shard, replicate };
enum class Precision { float32, bfloat16 };
enum class ReshardPolicy { automatic, always, never };
enum class GatherDtype { param_dtype, float8 };

/// Whether the shards exist in the param_dtype, too, for gathers to send.
enum class CopyForGathers { none, kept };

/// Where shards, their gradients and the optimizer are.
enum class Offload { none, pinned, pageable };

struct ShardConfig {
  Strategy strategy = Strategy::fully_shard;
  Precision param_dtype = Precision::float32;
  Precision reduce_dtype = Precision::float32;
  ReshardPolicy reshard = ReshardPolicy::automatic;
  int64_t reshard_ranks = 0;  // that keep full parameters together until
                              // backward; 0: what `reshard` says
  int64_t replicas = 1;       // copies of the sharded model (HSDP)
  GatherDtype gather_dtype = GatherDtype::param_dtype;
  CopyForGathers gather_copy = CopyForGathers::none;
  Offload offload = Offload::none;
  std::optional<int64_t> prefetch = {};  // units whose gathers start ahead;
                                         // unset: 1 on a GPU, 0 on a CPU
  BackwardOverlap backward_overlap = BackwardOverlap::full;
};

/// Errors: InvalidArgument as those of ConfigReader, for keys of fully_shard
///         with strategy = "replicate", and for a copy that gathers would not
///         send.
void read_shard(ConfigReader& reader, ShardConfig& shard);

struct ShardShape {
  int64_t replicas = 1;
  int64_t ranks = 1;  // of one replica, which parameters are cut over

  bool operator==(const ShardShape&) const = default;
};

/// Errors: InvalidArgument for replicas that do not divide the ranks of the
///         world, and ranks of reshard that do not divide those of a replica.
[[nodiscard]] ShardShape shard_shape(const ShardConfig& shard,
                                     int64_t world_size);

}  // namespace tessera::train
