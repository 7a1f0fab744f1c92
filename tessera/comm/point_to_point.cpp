#include "tessera/comm/point_to_point.h"

#include "tessera/comm/process_group_impl.h"
#include "tessera/comm/reduction.h"

namespace tessera::distributed {
namespace {

using at::Tensor;
using Group = ProcessGroup::Impl;

constexpr int kTags = 1 << 30;

const char* name_of(Direction direction) {
  return direction == Direction::send ? "send" : "recv";
}

void check(const Group& group, const P2POp& operation) {
  const char* call = name_of(operation.direction);
  group.check_usable(call);
  group.check_dense(call, operation.tensor);
  require<InvalidArgument>(operation.tag >= 0 && operation.tag < kTags, [&] {
    return str(group.what(call), "the tag is ", operation.tag, "; expected 0..",
               kTags - 1, ".");
  });
  const bool any =
      operation.peer == kAnySource && operation.direction == Direction::receive;
  if (any) return;
  group.check_rank(call, "peer", operation.peer);
  require<InvalidArgument>(operation.peer != group.rank, [&] {
    return str(group.what(call), "the peer is rank ", operation.peer,
               ", this rank itself; copy the tensor instead.");
  });
}

Tensor flat_tensor(const P2POp& operation, Work::Impl& work) {
  return operation.direction == Direction::send
             ? flat(operation.tensor)
             : flat_output(work, operation.tensor);
}

// On Gloo, whose works must be told when the world fails.
void add_message(const P2POp& operation, Work::Impl& work, Transfer& messages) {
  const Tensor tensor = flat_tensor(operation, work);
  if (operation.direction == Direction::send) {
    messages.send(tensor, operation.peer, operation.tag);
  } else if (operation.peer == kAnySource) {
    messages.receive_from_any(tensor, operation.tag);
  } else {
    messages.receive(tensor, operation.peer, operation.tag);
  }
}

c10::intrusive_ptr<c10d::Work> issue(const P2POp& operation, Work::Impl& work,
                                     c10d::Backend& backend) {
  std::vector<Tensor> tensors = {flat_tensor(operation, work)};
  if (operation.tensor.numel() == 0) return {};
  if (operation.direction == Direction::send) {
    return backend.send(tensors, operation.peer, operation.tag);
  }
  if (operation.peer == kAnySource) {
    return backend.recvAnysource(tensors, operation.tag);
  }
  return backend.recv(tensors, operation.peer, operation.tag);
}

void add(const Group& group, const P2POp& operation, Work::Impl& work) {
  const auto& entry = group.entry_of(operation.tensor);
  if (operation.direction == Direction::receive) {
    work.set_source(operation.peer);
  }
  if (entry.name == "gloo") {
    add_message(operation, work, work.messages(entry.backend));
  } else {
    work.add(issue(operation, work, *entry.backend));
  }
}

MessageEnd end_of(const Group& group, const P2POp& operation) {
  static_assert(kAnySource == MessageEnd::kFromAny);
  const bool sends = operation.direction == Direction::send;
  const std::string& backend = group.entry_of(operation.tensor).name;
  return {.group = group.name,
          .backend = backend,
          .source = sends ? group.rank : operation.peer,
          .target = sends ? operation.peer : group.rank,
          .tag = backend == "nccl" ? 0 : operation.tag,
          .call = name_of(operation.direction),
          .numel = operation.tensor.numel(),
          .dtype = operation.tensor.scalar_type()};
}

Work start(Group& group, const P2POp& operation) {
  check(group, operation);
  const MessageEnd end = end_of(group, operation);
  const bool any = operation.peer == kAnySource;
  const std::string link =
      str(any ? "any" : std::to_string(end.source), ">", end.target);
  const std::vector<int> peers =
      any ? group.ranks
          : std::vector<int>{group.ranks[end.source], group.ranks[end.target]};
  return group.start_messages(
      link, peers, name_of(operation.direction), {end},
      [&](Work::Impl& work) { add(group, operation, work); });
}

}  // namespace

Work isend(const Tensor& tensor, int destination, const ProcessGroup& group,
           int tag) {
  return start(group.impl(), {Direction::send, tensor, destination, tag});
}

Work irecv(const Tensor& tensor, int source, const ProcessGroup& group,
           int tag) {
  return start(group.impl(), {Direction::receive, tensor, source, tag});
}

void send(const Tensor& tensor, int destination, const ProcessGroup& group,
          int tag) {
  isend(tensor, destination, group, tag).wait();
}

int recv(const Tensor& tensor, int source, const ProcessGroup& group, int tag) {
  Work work = irecv(tensor, source, group, tag);
  work.wait();
  return work.source_rank();
}

std::vector<Work> batch_isend_irecv(const std::vector<P2POp>& operations,
                                    const ProcessGroup& handle) {
  Group& group = handle.impl();
  group.check_usable("batch_isend_irecv");
  for (const P2POp& operation : operations) check(group, operation);
  std::vector<Work> works;
  if (operations.empty()) return works;
  c10d::Backend& backend = *group.entry_of(operations[0].tensor).backend;
  if (!backend.supportsCoalescing()) {
    for (const P2POp& operation : operations) {
      works.push_back(start(group, operation));
    }
    return works;
  }
  std::vector<MessageEnd> ends;
  for (const P2POp& operation : operations) {
    ends.push_back(end_of(group, operation));
  }
  works.push_back(group.start_messages(
      "batch", group.ranks, "batch", ends, [&](Work::Impl& work) {
        backend.startCoalescing();
        for (const P2POp& operation : operations) {
          issue(operation, work, backend);
        }
        work.add(backend.endCoalescing());
      }));
  return works;
}

}  // namespace tessera::distributed
