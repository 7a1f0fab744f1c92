// Collectives over bytes of any length: what torch.distributed does with
// pickled objects. How a value becomes bytes is the caller's choice.
//
//   std::vector<std::string> names = all_gather_object(host_name, group);
//
// They return when they are done. For set-up and reports: lengths travel first,
// and everything is copied. Errors as in distributed.h.
#pragma once

#include <string>
#include <vector>

#include "tessera/comm/process_group.h"

namespace tessera::distributed {

/// The bytes of all ranks, in rank order.
[[nodiscard]] std::vector<std::string> all_gather_object(
    const std::string& object, const ProcessGroup& group);

/// The same on the root; empty elsewhere.
[[nodiscard]] std::vector<std::string> gather_object(const std::string& object,
                                                     int root,
                                                     const ProcessGroup& group);

/// Overwrites `objects` with those of the root, which may be more or fewer.
void broadcast_object_list(std::vector<std::string>& objects, int root,
                           const ProcessGroup& group);

/// Of the root's `objects`, one for each rank, this rank's; elsewhere `objects`
/// is empty.
[[nodiscard]] std::string scatter_object_list(
    const std::vector<std::string>& objects, int root,
    const ProcessGroup& group);

void send_object_list(const std::vector<std::string>& objects, int destination,
                      const ProcessGroup& group);
[[nodiscard]] std::vector<std::string> recv_object_list(
    int source, const ProcessGroup& group);

}  // namespace tessera::distributed
