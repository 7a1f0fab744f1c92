// How a Reduction is asked of a backend. Inside comm only.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "tessera/comm/distributed.h"
#include "tessera/comm/process_group_impl.h"
#include "tessera/comm/work_impl.h"

namespace tessera::distributed {

/// Errors: InvalidArgument when the operation has no meaning for the dtype;
///         Unsupported when the backend does not have it.
void check_reduction(const ProcessGroup::Impl& group, const char* call,
                     const at::Tensor& tensor, const Reduction& reduction);

/// What the log says of it.
[[nodiscard]] CallTerms terms_of(const Reduction& reduction, int root = -1);

/// For a tensor that `scale` has seen.
[[nodiscard]] c10d::ReduceOp to_c10d(const ProcessGroup::Impl& group,
                                     const at::Tensor& tensor,
                                     const Reduction& reduction);

/// True when the factor of a premul_sum is left to us: all but NCCL.
[[nodiscard]] bool must_scale(const ProcessGroup::Impl& group,
                              const at::Tensor& tensor,
                              const Reduction& reduction);

/// A flat view; of complex numbers, one of their real and imaginary parts.
[[nodiscard]] at::Tensor flat(const at::Tensor& tensor);
[[nodiscard]] std::vector<at::Tensor> flat(
    const std::vector<at::Tensor>& tensors);

/// The same of what `work` writes.
[[nodiscard]] at::Tensor flat_output(Work::Impl& work,
                                     const at::Tensor& tensor);
[[nodiscard]] std::vector<at::Tensor> flat_outputs(
    Work::Impl& work, const std::vector<at::Tensor>& tensors);

}  // namespace tessera::distributed
