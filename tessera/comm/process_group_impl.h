// What stands behind a distributed::ProcessGroup. Inside comm only.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/below_autograd.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/process_group.h"
#include "tessera/comm/work_impl.h"

namespace tessera::distributed {

struct ProcessGroup::Impl {
  struct Entry {
    std::string name;  // "gloo", "nccl", ...
    c10::intrusive_ptr<c10d::Backend> backend;
  };

  std::shared_ptr<World::State> world;
  std::string name;
  std::string description;
  std::vector<int> ranks;
  int rank = -1;  // -1: not a member
  std::chrono::milliseconds timeout{};
  std::map<c10::DeviceType, Entry> backends;
  std::unique_ptr<Rendezvous> rendezvous;  // of members
  bool destroyed = false;

  [[nodiscard]] int size() const { return static_cast<int>(ranks.size()); }

  /// Errors: InvalidArgument for a rank that is not a member, InvalidState for
  ///         a group that was destroyed.
  void check_usable(const char* call) const;
  void check_rank(const char* call, const char* what, int group_rank) const;
  /// Errors: InvalidArgument for a tensor that is undefined, not contiguous, or
  ///         on a device that the group has no backend for.
  void check_dense(const char* call, const at::Tensor& tensor) const;
  /// The same, and for a dtype that the backend does not compute with.
  void check_tensor(const char* call, const at::Tensor& tensor) const;
  /// All of one dtype and device, with `count` of them.
  void check_list(const char* call, const char* what,
                  const std::vector<at::Tensor>& tensors, size_t count,
                  const at::Tensor& like) const;

  [[nodiscard]] const Entry& entry_of(const at::Tensor& tensor) const;
  /// The device on which the group keeps tensors of its own.
  [[nodiscard]] c10::Device own_device() const;

  [[nodiscard]] std::string what(const char* call) const {
    return str(call, " on '", name, "': ");
  }

  /// What a collective is, in the log of each member.
  struct Call {
    const char* kind;
    int64_t numel = 0;
    std::optional<c10::ScalarType> dtype = {};
    CallTerms terms = {};
  };
  [[nodiscard]] static Call call_of(const char* kind, const at::Tensor& tensor,
                                    const CallTerms& terms = {}) {
    return {kind, tensor.numel(), tensor.scalar_type(), terms};
  }

  /// Enters a collective in the log and starts it: `body(work)` adds c10d
  /// works.
  template <class Body>
  Work start(const Call& call, Body&& body);
  /// The same for messages; `link` names them ("0>1"), `peers` are on it, and
  /// `ends` are what this rank says of each.
  template <class Body>
  Work start_messages(const std::string& link, const std::vector<int>& peers,
                      const char* op, const std::vector<MessageEnd>& ends,
                      Body&& body);

  /// An error of LibTorch before anything was sent is the caller's: throws it
  /// as such. All others fail the world.
  [[noreturn]] void raise(const char* kind, uint64_t sequence,
                          const std::exception& error);

 private:
  template <class Body>
  Work run(const char* kind, uint64_t sequence, Body&& body);
};

template <class Body>
Work ProcessGroup::Impl::run(const char* kind, uint64_t sequence, Body&& body) {
  const BelowAutograd below_autograd;
  auto work = std::make_unique<Work::Impl>(world, sequence, timeout);
  try {
    body(*work);
  } catch (const std::exception& error) {
    raise(kind, sequence, error);
  }
  return Work(std::move(work));
}

template <class Body>
Work ProcessGroup::Impl::start(const Call& call, Body&& body) {
  const uint64_t sequence =
      world->log.enter_unhashed(name, call.kind, {.unit = description},
                                call.numel, call.dtype, call.terms);
  world->begin(sequence);
  return run(call.kind, sequence, std::forward<Body>(body));
}

// Ranks send and receive in orders of their own, so each direction between two
// ranks is a communicator of its own for the log.
template <class Body>
Work ProcessGroup::Impl::start_messages(const std::string& link,
                                        const std::vector<int>& peers,
                                        const char* op,
                                        const std::vector<MessageEnd>& ends,
                                        Body&& body) {
  const std::string line = str(name, " ", link);
  world->add_peers(line, peers);
  const uint64_t sequence = world->log.enter_unhashed(
      line, "message", {.unit = description, .op = op});
  world->begin_messages(sequence, ends);
  return run(op, sequence, std::forward<Body>(body));
}

}  // namespace tessera::distributed
