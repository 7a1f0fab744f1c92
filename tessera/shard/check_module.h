// What fully_shard refuses, before it changes anything.
#pragma once

#include <span>
#include <vector>

#include "tessera/module/traversal.h"
#include "tessera/shard/options.h"
#include "tessera/shard/parameter_group.h"

namespace tessera {

/// Options and circumstances. Errors: InvalidArgument, InvalidState.
void check_options(const FullyShardOptions& options);

/// Modules that read their parameters through the dictionary, or write them in
/// forward (unless these are `ignored`). Errors: InvalidArgument, Unsupported.
void check_modules(std::span<torch::nn::Module* const> modules,
                   const std::vector<at::Tensor>& ignored);

/// Each parameter by itself. Errors: InvalidArgument, Unsupported.
void check_parameters(const std::vector<FoundParameter>& parameters);

/// No handle of a parameter but its modules': an optimizer made before sharding
/// would update tensors that nobody reads. Errors: InvalidState.
void check_holders(const std::vector<FoundParameter>& parameters);

/// All ranks start from the same names, shapes, dtypes, flags and values.
/// Collective. Errors: InvalidState on every rank, naming the first parameter
/// that differs.
void check_equal_start(const std::vector<FoundParameter>& parameters,
                       const ShardLanes& lanes);

}  // namespace tessera
