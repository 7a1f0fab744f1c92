// fully_shard for a whole model at once: a policy says which modules become
// units.
//
//   fully_shard_auto(*model, units_by_type<Block>(), {.mesh = mesh});
//   // is
//   for (auto& block : *model->blocks) fully_shard(*block, {.mesh = mesh});
//   fully_shard(*model, {.mesh = mesh});
//
// A policy is any function of a module below the root; these are ready made:
//
//   units_by_type<Block, nn::TransformerEncoderLayer>()
//   units_by_repeated_children(4)   // layers of lists: 4 or more of one type
//   units_by_size(1'000'000)        // what gathers at least that many elements
//   [](const UnitCandidate& c) { return c.name.ends_with("attention"); }
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/shard/options.h"

namespace tessera {

/// A module below the root, of which a policy decides.
struct UnitCandidate {
  std::string name;  // fully qualified; of its first place, when shared
  const torch::nn::Module& module;
  const torch::nn::Module& parent;
  // Elements of the parameters that it would take: those below it that no unit
  // below has taken.
  int64_t numel;
};

/// Whether the module becomes a unit. It is asked from the bottom up, once for
/// each module below the root that would take any parameter or was sharded
/// before, and must answer alike on all ranks.
using UnitPolicy = std::function<bool(const UnitCandidate&)>;

/// Shards the modules that `policy` chooses from the bottom up, and `model`
/// last, all with the same options. Units that are there already stay.
///
/// Returns: the names of the modules that became units, in the order of their
///          calls; "" at the end stands for `model`, unless the units below
///          took all parameters. They are logged, too.
/// Errors:  InvalidArgument when the policy chooses nothing, or a ModuleList or
///          ModuleDict, which is a mere list; InvalidState when it chooses a
///          module that is sharded already, or `model` is. Otherwise those of
///          fully_shard. Nothing is changed by a call that fails, unless ranks
///          that disagree made it fail.
std::vector<std::string> fully_shard_auto(torch::nn::Module& model,
                                          const UnitPolicy& policy,
                                          const FullyShardOptions& options);

/// Children of a ModuleList or Sequential that has at least `at_least` children
/// of their type: the layers of most models.
/// Errors: InvalidArgument for at_least < 1.
[[nodiscard]] UnitPolicy units_by_repeated_children(int64_t at_least = 2);

/// Modules that would take at least `min_numel` elements. Bottom-up: what a
/// unit has taken counts no more above it, so small neighbours join in their
/// parent. Never a ModuleList or ModuleDict.
/// Errors: InvalidArgument for min_numel < 1.
[[nodiscard]] UnitPolicy units_by_size(int64_t min_numel);

namespace internal {

/// The module type behind a holder such as `nn::Linear`, or the type itself.
template <class T>
struct ModuleType {
  using type = T;
};
template <class T>
requires requires { typename T::ContainedType; }
struct ModuleType<T> {
  using type = typename T::ContainedType;
};

}  // namespace internal

/// Modules of one of these types, or of types derived from them. Takes holders
/// (`nn::Linear`, `Block`) and modules (`nn::LinearImpl`, `BlockImpl`).
template <class... Types>
[[nodiscard]] UnitPolicy units_by_type() {
  static_assert(sizeof...(Types) > 0, "units_by_type: name at least one type");
  return [](const UnitCandidate& candidate) {
    return (... ||
            (dynamic_cast<const typename internal::ModuleType<Types>::type*>(
                 &candidate.module) != nullptr));
  };
}

}  // namespace tessera
