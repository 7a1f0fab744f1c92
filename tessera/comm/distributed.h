// The collectives of torch.distributed under their names.
//
//   using namespace tessera::distributed;
//   ProcessGroup group = new_group(world);
//   all_reduce(tensor, group, ReduceOp::avg).wait();
//   Work work = all_gather_into_tensor(whole, part, group);
//
// Each starts and returns a Work; `.wait()` on it is Python's `async_op=False`.
// All members make the same calls in the same order. docs/collectives.md says
// which backend has which call, operation and dtype.
//
// Tensors are contiguous, on a device of the group, and of the same dtype and
// number of elements on all ranks; shapes do not matter, except where rows are
// named. Autograd records nothing. `root` is a group rank; see
// ProcessGroup::group_rank for Python's, which are ranks of the world.
//
// Errors, before anything is sent: InvalidArgument for a handle of another
// group's rank, for ranks, devices, dtypes, layouts and sizes that do not fit;
// Unsupported where the backend lacks the call. CommError from `wait` later.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <optional>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/comm/object_collectives.h"
#include "tessera/comm/point_to_point.h"
#include "tessera/comm/process_group.h"
#include "tessera/comm/subgroups.h"
#include "tessera/comm/work.h"

namespace tessera::distributed {

using tessera::ReduceOp;

/// How values of ranks become one. A ReduceOp alone is one, but for premul_sum.
struct Reduction {
  Reduction(ReduceOp op = ReduceOp::sum);  // Errors: InvalidArgument for premul
  ReduceOp op;
  double factor = 1;  // of premul_sum
};

/// The sum of `factor` times the value of each rank. Each may have its own.
[[nodiscard]] Reduction premul_sum(double factor);

/// Overwrites `tensor` with that of the root.
Work broadcast(const at::Tensor& tensor, int root, const ProcessGroup& group);

/// Overwrites `tensor` with the reduction, on all ranks.
Work all_reduce(const at::Tensor& tensor, const ProcessGroup& group,
                const Reduction& reduction = {});

/// The same on the root alone; elsewhere `tensor` holds nothing of use after.
Work reduce(const at::Tensor& tensor, int root, const ProcessGroup& group,
            const Reduction& reduction = {});

/// outputs[r] becomes the input of rank r. NCCL takes unlike sizes.
Work all_gather(const std::vector<at::Tensor>& outputs, const at::Tensor& input,
                const ProcessGroup& group);

/// `output` becomes the inputs of all ranks, one after the other.
Work all_gather_into_tensor(const at::Tensor& output, const at::Tensor& input,
                            const ProcessGroup& group);

/// `output` becomes the reduction of inputs[this rank] of all ranks. The inputs
/// may have unlike sizes.
Work reduce_scatter(const at::Tensor& output,
                    const std::vector<at::Tensor>& inputs,
                    const ProcessGroup& group, const Reduction& reduction = {});

/// `output` becomes this rank's equal part of the reduction of `input`.
Work reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input,
                           const ProcessGroup& group,
                           const Reduction& reduction = {});

/// outputs[r] becomes inputs[this rank] of rank r. Sizes may be unlike; what
/// rank a sends to b is as long as what b expects of a.
Work all_to_all(const std::vector<at::Tensor>& outputs,
                const std::vector<at::Tensor>& inputs,
                const ProcessGroup& group);

/// Rows (of dim 0) for each rank; empty: as many for each.
struct Splits {
  std::vector<int64_t> output = {};
  std::vector<int64_t> input = {};
};

/// The same with the parts one after the other, as rows of one tensor.
Work all_to_all_single(const at::Tensor& output, const at::Tensor& input,
                       const ProcessGroup& group, const Splits& splits = {});

/// On the root outputs[r] becomes the input of rank r; elsewhere `outputs` is
/// empty.
Work gather(const at::Tensor& input, const std::vector<at::Tensor>& outputs,
            int root, const ProcessGroup& group);

/// `output` becomes inputs[this rank] of the root; elsewhere `inputs` is empty.
Work scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs,
             int root, const ProcessGroup& group);

/// Ends when all members have called it, and what they started before has
/// ended.
Work barrier(const ProcessGroup& group);

/// A barrier that names all who did not come in time (unset: that of the
/// group), on every rank that came. Through the store; on Gloo also over every
/// connection. Errors: CommError; the job has failed then.
void monitored_barrier(const ProcessGroup& group,
                       std::optional<std::chrono::milliseconds> timeout = {});

}  // namespace tessera::distributed
