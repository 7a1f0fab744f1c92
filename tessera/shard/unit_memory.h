// What one unit takes on one rank: its parts, in bytes. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/shard/flat_layout.h"

namespace tessera {

/// What travels in gathers: FullyShardOptions::gather_transform.
enum class GatherForm { compute_dtype, float8 };

/// Parameters of a unit that travel in one buffer.
struct GroupMemory {
  FlatLayout layout;
  int64_t master_bytes = 4;   // of an element of the shards
  int64_t compute_bytes = 4;  // ... of the full parameters
  int64_t reduce_bytes = 4;   // ... of the sum over ranks
  // ... of a whole gradient on its way to that sum; 0: reduce_bytes. Gradients
  // computed in 16 bits may travel so (Communicator::sums_as).
  int64_t sent_bytes = 0;
  GatherForm form = GatherForm::compute_dtype;
};

/// kept_in_parts: each of some ranks keeps an equal part of the full parameters
/// until backward (ReshardAfterForward).
enum class AfterForward { freed, kept, kept_in_parts };

/// Where shards, their gradients and the optimizer are: offloaded ones on the
/// host.
enum class Masters { on_device, on_host };

struct UnitMemory {
  std::vector<GroupMemory> groups = {};
  AfterForward after_forward = AfterForward::freed;
  int64_t keepers = 1;                // ranks of kept_in_parts
  std::optional<size_t> parent = {};  // the unit around this one
};

/// Of this rank.
[[nodiscard]] int64_t shard_bytes(const UnitMemory& unit);

/// Of the full parameters. One rank that owns all in the compute dtype, on the
/// device, takes none: they are the shards.
[[nodiscard]] int64_t gathered_bytes(const UnitMemory& unit, Masters masters);

/// Of this rank's part of them, for kept_in_parts.
[[nodiscard]] int64_t part_bytes(const UnitMemory& unit);

/// All ranks' elements and scales as they travel in float8; 0 for other groups.
[[nodiscard]] int64_t wire_bytes(const GroupMemory& group);

/// What a gather takes beside the full parameters until they are there: what
/// travels in float8, and one buffer of it in fp32.
[[nodiscard]] int64_t travel_bytes(const UnitMemory& unit);

/// CPU: until the end of backward; CUDA: until the next reduction begins.
enum class ReduceBuffers { until_end, until_next };

/// after_backward: the shards' gradients stay until then. in_backward: those of
/// a unit go once the next reduction begins (step_in_backward), but not with
/// replicas nor on one rank, and the last ones after backward.
enum class OptimizerStep { after_backward, in_backward };

struct ReductionBytes {
  int64_t input = 0;
  int64_t received = 0;       // on a CPU, what the peers of the shard axis send
  int64_t output = 0;         // with one such rank the input is the result
  int64_t from_replicas = 0;  // on a CPU, what those of the replicate axis send
  int64_t converted = 0;      // the result once more, when the dtypes differ
};
[[nodiscard]] ReductionBytes reduction_bytes(const UnitMemory& unit,
                                             ReduceBuffers buffers,
                                             int64_t replicas);

}  // namespace tessera
