#include "tessera/comm/subgroups.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "tessera/base/error.h"
#include "tessera/comm/cuda_report.h"
#include "tessera/comm/process_group_impl.h"
#include "tessera/comm/world_state.h"

namespace tessera::distributed {
namespace {

using Division = std::vector<std::vector<int>>;

std::string text_of(const Division& division) {
  std::string text;
  for (const auto& ranks : division) {
    text += text.empty() ? "{" : ", {";
    for (size_t i = 0; i < ranks.size(); ++i) {
      text += str(i == 0 ? "" : ",", ranks[i]);
    }
    text += "}";
  }
  return text;
}

/// No group of nobody, and nobody in two.
void check_division(const char* call, const Division& division, int size) {
  std::vector<int> uses(size, 0);
  bool good = !division.empty();
  for (const auto& ranks : division) {
    good = good && !ranks.empty();
    for (const int rank : ranks) {
      good = good && rank >= 0 && rank < size && ++uses[rank] == 1;
    }
  }
  require<InvalidArgument>(good, [&] {
    return str(call, ": got the groups ", text_of(division),
               "; give one or more, none of them empty, with each of the ranks "
               "0..",
               size - 1, " at most once.");
  });
}

/// `ranks` in parts of `part`.
Division cut(const std::vector<int>& ranks, int part) {
  const int size = static_cast<int>(ranks.size());
  require<InvalidArgument>(part > 0 && size % part == 0, [&] {
    return str("new_subgroups: group_size is ", part,
               ", which does not divide ", size,
               size == 1 ? " rank." : " ranks.");
  });
  Division division;
  for (auto first = ranks.begin(); first != ranks.end(); first += part) {
    division.emplace_back(first, first + part);
  }
  return division;
}

int ranks_of_this_machine() {
  const size_t devices = cuda_device_names().size();
  require<InvalidArgument>(devices > 0, [] {
    return str(
        "new_subgroups: give group_size; without it a group has as many "
        "ranks as this machine has CUDA devices, and it has none.");
  });
  return static_cast<int>(devices);
}

// Members that split unlike would wait for each other.
void compare_splits(const ProcessGroup& parent, const Division& splits) {
  ProcessGroup::Impl& group = parent.impl();
  const std::string own = text_of(splits);
  const auto all = group.world->meet(group.name, "split_group", {}, [&] {
    return group.rendezvous->exchange("split_group", own);
  });
  const auto other = std::ranges::find_if(
      all, [&](const std::string& each) { return each != own; });
  require<InvalidArgument>(other == all.end(), [&] {
    return str(group.what("split_group"), "rank ", group.rank,
               " splits it into ", own, ", but rank ", other - all.begin(),
               " into ", *other, ". All members give the same lists.");
  });
}

GroupOptions options_of_split(const ProcessGroup& parent,
                              GroupOptions options) {
  if (options.backend.empty()) options.backend = parent.backend();
  if (!options.timeout) options.timeout = parent.timeout();
  if (options.description.empty() && !parent.description().empty()) {
    options.description = parent.description() + " (split)";
  }
  options.callers = Callers::members;
  return options;
}

}  // namespace

Subgroups new_subgroups_by_enumeration(const World& world,
                                       const Division& ranks_per_subgroup,
                                       const GroupOptions& options) {
  require<InvalidState>(world.defined(), [] {
    return str(
        "new_subgroups: this World is empty; make it by "
        "init_distributed().");
  });
  check_division("new_subgroups", ranks_per_subgroup, world.size());
  Subgroups made;
  for (const std::vector<int>& ranks : ranks_per_subgroup) {
    made.all.push_back(new_group(world, ranks, options));
  }
  const auto own = std::ranges::find_if(
      made.all, [](const auto& g) { return g.is_member(); });
  made.own = own == made.all.end() ? made.all.front() : *own;
  return made;
}

Subgroups new_subgroups(const World& world, std::optional<int> group_size,
                        const GroupOptions& options) {
  std::vector<int> ranks(world.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  const int part = group_size ? *group_size : ranks_of_this_machine();
  return new_subgroups_by_enumeration(world, cut(ranks, part), options);
}

Subgroups new_subgroups(const ProcessGroup& parent, int group_size,
                        const GroupOptions& options) {
  return new_subgroups_by_enumeration(World(parent.impl().world),
                                      cut(parent.ranks(), group_size), options);
}

ProcessGroup split_group(const ProcessGroup& parent, const Division& splits,
                         const GroupOptions& options) {
  ProcessGroup::Impl& group = parent.impl();
  group.check_usable("split_group");
  check_division("split_group", splits, group.size());
  compare_splits(parent, splits);
  const auto own = std::ranges::find_if(splits, [&](const auto& ranks) {
    return std::ranges::find(ranks, group.rank) != ranks.end();
  });
  std::vector<int> world_ranks;
  for (const int rank : own == splits.end() ? splits.front() : *own) {
    world_ranks.push_back(parent.world_rank(rank));
  }
  return new_group(World(group.world), std::move(world_ranks),
                   options_of_split(parent, options));
}

}  // namespace tessera::distributed
