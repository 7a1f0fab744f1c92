// Messages between two ranks of a group, as in torch.distributed.
//
//   if (group.rank() == 0) send(tensor, 1, group);
//   if (group.rank() == 1) recv(tensor, 0, group);
//
// Ranks are group ranks. A message is received by the call with the same tag
// and the same number of bytes, in the order in which messages of a tag were
// sent. Tags are 0 to 2^30 - 1; NCCL has none and takes the order alone.
//
// Errors, before anything is sent: InvalidArgument for a rank that is not in
// the group or is this one, for a tag out of range, and for tensors as in
// distributed.h; Unsupported where the backend lacks the call.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "tessera/comm/process_group.h"
#include "tessera/comm/work.h"

namespace tessera::distributed {

/// As the source of a message: whoever sends first. Gloo alone.
inline constexpr int kAnySource = -1;

Work isend(const at::Tensor& tensor, int destination, const ProcessGroup& group,
           int tag = 0);
Work irecv(const at::Tensor& tensor, int source, const ProcessGroup& group,
           int tag = 0);

/// The same, waited for. `recv` returns the rank that has sent.
void send(const at::Tensor& tensor, int destination, const ProcessGroup& group,
          int tag = 0);
int recv(const at::Tensor& tensor, int source, const ProcessGroup& group,
         int tag = 0);

enum class Direction { send, receive };

struct P2POp {
  Direction direction = Direction::send;
  at::Tensor tensor;
  int peer = 0;
  int tag = 0;
};

/// Starts all together: on NCCL in one launch, with one Work for all, so that
/// ranks may send to each other in any order.
std::vector<Work> batch_isend_irecv(const std::vector<P2POp>& operations,
                                    const ProcessGroup& group);

}  // namespace tessera::distributed
