// Ready communication hooks for DistributedDataParallel::set_comm_hook.
#pragma once

#include "tessera/comm/process_group.h"
#include "tessera/parallel/gradient_bucket.h"

namespace tessera::comm_hooks {

/// The mean over the ranks: what happens without a hook.
[[nodiscard]] CommHook all_reduce(const distributed::ProcessGroup& group);

/// The same with gradients as float16 on their way: half the bytes, 11 bits.
/// Each rank's are divided before they are sent.
[[nodiscard]] CommHook fp16_compress(const distributed::ProcessGroup& group);

/// As bfloat16: the range of float, 8 bits.
[[nodiscard]] CommHook bf16_compress(const distributed::ProcessGroup& group);

/// Nothing is sent: each rank keeps its own gradients. To measure what
/// communication costs.
[[nodiscard]] CommHook noop();

}  // namespace tessera::comm_hooks
