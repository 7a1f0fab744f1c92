// Many groups at once: a division of the world, or of a group.
//
//   Subgroups pairs = new_subgroups(world, 2);     // {0, 1}, {2, 3}, ...
//   all_reduce(tensor, pairs.own).wait();
//
//   ProcessGroup half = split_group(parent, {{0, 1}, {2, 3}});
#pragma once

#include <optional>
#include <vector>

#include "tessera/comm/process_group.h"

namespace tessera::distributed {

struct Subgroups {
  ProcessGroup own;  // where this rank is in none: is_member() is false
  std::vector<ProcessGroup> all;  // in the order of the division
};

/// A group for each of the lists of world ranks, which do not overlap; some
/// ranks may be in none. Called by all ranks, as new_group.
/// Errors: InvalidArgument, before any is made, for an empty list, an empty
///         group, or ranks that do not exist or stand twice; else as new_group.
[[nodiscard]] Subgroups new_subgroups_by_enumeration(
    const World& world, const std::vector<std::vector<int>>& ranks_per_subgroup,
    const GroupOptions& options = {});

/// Groups of `group_size` ranks that follow each other. Unset: of as many as
/// this machine has CUDA devices, so that each is one machine's.
/// Errors: InvalidArgument for a size that does not divide the world, or none
///         without a CUDA device; else as new_group.
[[nodiscard]] Subgroups new_subgroups(const World& world,
                                      std::optional<int> group_size = {},
                                      const GroupOptions& options = {});

/// The same within the ranks of `parent`. Called by all ranks of the world.
[[nodiscard]] Subgroups new_subgroups(const ProcessGroup& parent,
                                      int group_size,
                                      const GroupOptions& options = {});

/// The one of the lists of group ranks of `parent` that has this rank, as a
/// group; where none has, is_member() is false. Called by all members of
/// `parent` and nobody else. Backend and time-out are the parent's unless
/// given; `callers` is not looked at. Connections are new ones, with every
/// backend. Errors: InvalidArgument for lists that overlap, are empty, have
/// ranks that
///         are not in the parent, or differ between callers; else as new_group.
[[nodiscard]] ProcessGroup split_group(
    const ProcessGroup& parent, const std::vector<std::vector<int>>& splits,
    const GroupOptions& options = {});

}  // namespace tessera::distributed
