// Groups of ranks for collectives of your own, beside those of the library.
//
//   World world = init_distributed();
//   ProcessGroup all = new_group(world);
//   ProcessGroup pair = new_group(world, {0, 1});      // called by all ranks
//   if (pair.is_member()) all_reduce(tensor, pair).wait();
//
// What torch.distributed does with a group, see distributed.h. Each group has
// connections of its own: its calls never meet those of another group, nor the
// gathers and reductions of the library.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/comm/backend_factory.h"
#include "tessera/comm/world.h"

namespace tessera::distributed {

/// A cheap handle; copies share one group. Ranks in calls are group ranks.
class ProcessGroup {
 public:
  struct Impl;

  ProcessGroup() = default;
  explicit ProcessGroup(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

  [[nodiscard]] bool defined() const { return impl_ != nullptr; }
  /// False where this rank is not in the group: then only what follows up to
  /// `description` may be asked; all else is an InvalidArgument.
  [[nodiscard]] bool is_member() const;
  [[nodiscard]] int size() const;
  /// World ranks of the members, ascending: the r-th is that of group rank r.
  [[nodiscard]] const std::vector<int>& ranks() const;
  [[nodiscard]] int world_rank(int group_rank) const;
  /// Errors: InvalidArgument for a rank that is not in the group.
  [[nodiscard]] int group_rank(int world_rank) const;
  [[nodiscard]] const std::string& name() const;
  [[nodiscard]] const std::string& description() const;

  [[nodiscard]] int rank() const;
  /// "gloo", "nccl", or "cpu:gloo,cuda:nccl".
  [[nodiscard]] std::string backend() const;
  [[nodiscard]] std::chrono::milliseconds timeout() const;

  /// For the calls of this surface. Errors: InvalidState for an empty handle.
  [[nodiscard]] Impl& impl() const;

 private:
  std::shared_ptr<Impl> impl_;
};

/// Who calls new_group.
enum class Callers {
  all_ranks,  // of the world, in one order; their arguments are compared
  members,    // of the new group alone
};

struct GroupOptions {
  // "" is that of the world; else "gloo", "nccl", the name of a registered one,
  // or one for each kind of device: "cpu:gloo,cuda:nccl".
  std::string backend = "";
  std::optional<std::chrono::milliseconds> timeout = {};  // unset: the world's
  std::string description = "";  // for messages and tables
  Callers callers = Callers::all_ranks;
  StreamPriority stream_priority = StreamPriority::normal;  // NCCL
};

/// Connects `ranks` (world ranks in any order; empty: all). Ranks outside get a
/// handle whose use is an error.
/// Errors: InvalidArgument for ranks that do not exist or stand there twice,
/// and
///         when the callers ask for unlike groups; Unsupported for a backend
///         that is not here, with the names of those that are; CommError.
[[nodiscard]] ProcessGroup new_group(const World& world,
                                     std::vector<int> ranks = {},
                                     const GroupOptions& options = {});

/// Waits for all members, then closes the connections. Copies of the handle
/// become unusable; a group that is never destroyed ends with its world.
void destroy_process_group(ProcessGroup group);

/// Makes a backend known to `new_group` on this rank; all ranks do it alike.
/// `name` is in lower case and no backend's that is here already.
void register_backend(const World& world, const std::string& name,
                      BackendMaker maker);

/// "gloo", "nccl" in a CUDA build with a device, and registered ones.
[[nodiscard]] std::vector<std::string> available_backends(const World& world);

}  // namespace tessera::distributed
