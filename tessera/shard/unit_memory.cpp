#include "tessera/shard/unit_memory.h"

#include <algorithm>

namespace tessera {
namespace {

constexpr int64_t kFloatBytes = 4;

bool is_its_own_master(const GroupMemory& group, Masters masters) {
  return masters == Masters::on_device && group.layout.world_size() == 1 &&
         group.form == GatherForm::compute_dtype &&
         group.compute_bytes == group.master_bytes &&
         group.layout.full_numel() == group.layout.shard_numel();
}

/// Elements of all ranks, without the gaps between buffers.
int64_t whole_numel(const FlatBuffer& buffer, const FlatLayout& layout) {
  return buffer.shard_numel * layout.world_size();
}

// What an all-reduce on a CPU holds until it is waited for: large tensors are
// summed in two rounds of which nothing stays.
int64_t all_reduce_bytes(int64_t bytes, int64_t ranks) {
  constexpr int64_t kMaxOneRound = 64 << 10;
  return ranks <= 2 || bytes <= kMaxOneRound ? (ranks - 1) * bytes : 0;
}

}  // namespace

int64_t shard_bytes(const UnitMemory& unit) {
  int64_t bytes = 0;
  for (const GroupMemory& group : unit.groups) {
    bytes += group.layout.shard_numel() * group.master_bytes;
  }
  return bytes;
}

int64_t gathered_bytes(const UnitMemory& unit, Masters masters) {
  int64_t bytes = 0;
  for (const GroupMemory& group : unit.groups) {
    if (is_its_own_master(group, masters)) continue;
    bytes += group.layout.full_numel() * group.compute_bytes;
  }
  return bytes;
}

int64_t part_bytes(const UnitMemory& unit) {
  int64_t bytes = 0;
  for (const GroupMemory& group : unit.groups) {
    int64_t numel = 0;
    for (const FlatBuffer& buffer : group.layout.buffers()) {
      numel += whole_numel(buffer, group.layout);
    }
    bytes += numel / unit.keepers * group.compute_bytes;
  }
  return bytes;
}

int64_t wire_bytes(const GroupMemory& group) {
  if (group.form != GatherForm::float8) return 0;
  int64_t bytes = 0;
  for (const FlatBuffer& buffer : group.layout.buffers()) {
    const int64_t numel = whole_numel(buffer, group.layout);
    bytes += numel + numel / buffer.row_numel * kFloatBytes;
  }
  return bytes;
}

int64_t travel_bytes(const UnitMemory& unit) {
  int64_t bytes = 0;
  int64_t largest = 0;
  for (const GroupMemory& group : unit.groups) {
    bytes += wire_bytes(group);
    if (group.form != GatherForm::float8) continue;
    for (const FlatBuffer& buffer : group.layout.buffers()) {
      largest = std::max(largest, whole_numel(buffer, group.layout));
    }
  }
  return bytes + largest * kFloatBytes;
}

ReductionBytes reduction_bytes(const UnitMemory& unit, ReduceBuffers buffers,
                               int64_t replicas) {
  ReductionBytes bytes;
  for (const GroupMemory& group : unit.groups) {
    const int64_t shard = group.layout.shard_numel();
    const int64_t ranks = group.layout.world_size();
    const int64_t sent =
        ranks > 1 && group.sent_bytes > 0 ? group.sent_bytes : group.reduce_bytes;
    bytes.input += group.layout.full_numel() * sent;
    if (ranks > 1) bytes.output += shard * group.reduce_bytes;
    if (buffers == ReduceBuffers::until_end) {
      bytes.received += (ranks - 1) * shard * sent;
      bytes.from_replicas +=
          all_reduce_bytes(shard * group.reduce_bytes, replicas);
    }
    if (group.reduce_bytes != group.master_bytes) {
      bytes.converted += shard * group.master_bytes;
    }
  }
  return bytes;
}

}  // namespace tessera
