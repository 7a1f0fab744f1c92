// What the ranks of a model have to agree on.
//
// Inside parallel only.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/comm/process_group.h"
#include "tessera/parallel/named_tensor.h"

namespace tessera {

/// One line of options; and of tensors names, sizes, strides, dtypes, and
/// whether they are trained, in order. Collective. Errors, on all ranks:
/// InvalidArgument with the first difference and its ranks.
void check_same_models(const std::string& options,
                       const std::vector<NamedTensor>& tensors,
                       const distributed::ProcessGroup& group);

/// Overwrites them with those of `root`, some hundred MiB at a time. All on one
/// device of the group.
void broadcast_tensors(const std::vector<at::Tensor>& tensors, int root,
                       const distributed::ProcessGroup& group);

/// Those of `root`. Collective.
[[nodiscard]] std::vector<size_t> numbers_of_root(
    const std::vector<size_t>& mine, int root,
    const distributed::ProcessGroup& group);

/// Of each, the greatest over the ranks. Collective, on `device`; waits.
[[nodiscard]] std::vector<int32_t> most_of(
    const std::vector<int32_t>& mine, c10::Device device,
    const distributed::ProcessGroup& group);

/// Of each, whether it is true on some rank. Collective, on `device`; waits.
[[nodiscard]] std::vector<bool> true_anywhere(
    const std::vector<bool>& mine, c10::Device device,
    const distributed::ProcessGroup& group);

}  // namespace tessera
