// An optimizer whose state is divided among ranks that hold the same
// parameters (ZeRO-1, arXiv:1910.02054).
//
//   DistributedDataParallel ddp(net, {.mesh = mesh});  // or replicate
//   ZeroRedundancyOptimizer<torch::optim::AdamW> optimizer(
//       net->parameters(), 3e-4, {.mesh = mesh});
//   loss_of(ddp(input), target).backward();
//   optimizer.step();  // each rank steps its parameters, and sends them
//
// Each parameter belongs to one rank, whole (see partition_parameters.h). That
// rank has its state and steps it; then all ranks get its new values. The
// numbers are those of the optimizer that is wrapped.
//
// It is a torch::optim::Optimizer over all parameters: schedulers, `zero_grad`,
// GradScaler and `state_of` take it, and changes of `param_groups()` count from
// the next step on. Its own `state()` stays empty; `local_optimizer()` has this
// rank's. All ranks make the same calls, with the same options.
#pragma once

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "tessera/optim/adamw.h"
#include "tessera/optim/zero_redundancy_optimizer_base.h"

namespace tessera {

/// What ZeroRedundancyOptimizer must know of an optimizer. For one of your own,
/// whose update of a parameter needs that parameter alone:
///
///   template <>
///   struct tessera::WrappedTraits<Mine> {
///     using Options = MyOptions;  // Mine(groups, options) is a constructor
///     using Archive = Mine;       // has its states in `state()`
///   };
template <class Wrapped>
struct WrappedTraits;

template <>
struct WrappedTraits<torch::optim::AdamW> {
  using Options = torch::optim::AdamWOptions;
  using Archive = torch::optim::AdamW;
};
template <>
struct WrappedTraits<torch::optim::Adam> {
  using Options = torch::optim::AdamOptions;
  using Archive = torch::optim::Adam;
};
template <>
struct WrappedTraits<torch::optim::SGD> {
  using Options = torch::optim::SGDOptions;
  using Archive = torch::optim::SGD;
};
template <>
struct WrappedTraits<torch::optim::Adagrad> {
  using Options = torch::optim::AdagradOptions;
  using Archive = torch::optim::Adagrad;
};
template <>
struct WrappedTraits<torch::optim::RMSprop> {
  using Options = torch::optim::RMSpropOptions;
  using Archive = torch::optim::RMSprop;
};
template <>
struct WrappedTraits<AdamW> {
  using Options = torch::optim::AdamWOptions;
  using Archive = torch::optim::AdamW;
};

/// Wraps an optimizer that treats each parameter alone.
template <class Wrapped>
class ZeroRedundancyOptimizer final : public ZeroRedundancyOptimizerBase {
  static_assert(!std::is_same_v<Wrapped, torch::optim::LBFGS>,
                "LBFGS needs dot products over all parameters, and cannot be "
                "divided.");

 public:
  using Options = typename WrappedTraits<Wrapped>::Options;

  /// Collective over the group. Errors: as the base class's constructor, and
  /// those of the wrapped optimizer for its options.
  ZeroRedundancyOptimizer(
      const std::vector<torch::optim::OptimizerParamGroup>& groups,
      const Options& defaults, ZeroOptions options)
      : ZeroRedundancyOptimizerBase(groups, std::make_unique<Options>(defaults),
                                    makers(defaults), std::move(options)) {}
  ZeroRedundancyOptimizer(std::vector<at::Tensor> parameters,
                          const Options& defaults, ZeroOptions options)
      : ZeroRedundancyOptimizer(
            std::vector<torch::optim::OptimizerParamGroup>{
                torch::optim::OptimizerParamGroup(std::move(parameters))},
            defaults, std::move(options)) {}

 private:
  static Makers makers(const Options& defaults) {
    using Archive = typename WrappedTraits<Wrapped>::Archive;
    return {[defaults](const Groups& groups) {
              return std::make_unique<Wrapped>(groups, defaults);
            },
            [defaults](const Groups& groups) {
              return std::make_unique<Archive>(groups, defaults);
            }};
  }
};

}  // namespace tessera
