// Whole tensors out of every rank's parts.
//
//   rank 0   w rows 0-2  .--------------------.   w rows 0-4
//   rank 1   w rows 3-4  '- a batch at a time -'  (rank 0, or every rank)
#pragma once

#include <functional>
#include <string>

#include "tessera/state/state_dict.h"
#include "tessera/state/state_group.h"

namespace tessera {

enum class GatherTo {
  every_rank,    // each tensor on the device where its parts are
  host_of_rank0  // in rank 0's host memory; the others get an empty dict
};

/// What `collect` gives on each rank, with whole tensors of their own memory.
/// Collective; `what` stands in front of errors.
///
/// Memory beside the result: one batch, of 64 MiB or one tensor, whichever is
/// more, and this rank's part of it.
/// Errors: what `collect` raised on some rank, and InvalidArgument for ranks
///         whose dicts differ and for tensors that their parts do not cover;
///         the same on all ranks.
[[nodiscard]] StateDict gather_full(const StateGroup& group,
                                    const std::string& what,
                                    const std::function<StateDict()>& collect,
                                    GatherTo to);

}  // namespace tessera
