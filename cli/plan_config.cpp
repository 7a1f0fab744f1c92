#include "cli/plan_config.h"

#include "tessera/base/environment.h"
#include "tessera/base/error.h"
#include "tessera/comm/peer_rounds.h"
#include "tessera/train/step_shape.h"
#include "tessera/train/train_config.h"

namespace tessera::cli {
namespace {

using train::TrainConfig;

Transport transport_of(const TrainConfig& config) {
  const auto asked = train::transport_of(config.distributed.transport);
  if (asked) return *asked;
  return environment::uses_copy_engines() ? Transport::copy_engines
                                          : Transport::nccl;
}

int64_t window_mib_of(const TrainConfig& config) {
  if (config.distributed.window_mib) return *config.distributed.window_mib;
  return environment::window_mib().value_or(kPeerWindowMib);
}

void take(const TrainConfig& config, train::PlanOptions& options) {
  require(config.shard.strategy == train::Strategy::fully_shard, [] {
    return str("plan: shard.strategy is replicate; tessera plan knows ",
               "fully_shard.");
  });
  options.model = config.model;
  options.batch = config.train.batch;
  options.shard = config.shard;
  options.transport = transport_of(config);
  options.window_mib = window_mib_of(config);
  options.optimizer_step = config.train.step_in_backward
                               ? OptimizerStep::in_backward
                               : OptimizerStep::after_backward;
}

void check_ranks(const train::PlanOptions& options) {
  require(options.ranks >= 1, [&] {
    return str("plan: ranks is ", options.ranks, "; give 1 or more.");
  });
}

}  // namespace

void read_plan_config(const std::string& path,
                      std::vector<std::string> overrides,
                      train::PlanOptions& options) {
  check_ranks(options);
  // The plan asks for no token file; the first override is the weakest.
  overrides.insert(overrides.begin(), "data.tokens=none");
  const TrainConfig config = train::read_train_config(path, overrides);
  take(config, options);
  options.micro_batches =
      train::step_shape(config, static_cast<int>(options.ranks)).micro_batches;
}

void read_plan_keys(const std::vector<std::string>& overrides,
                    train::PlanOptions& options) {
  check_ranks(options);
  take(train::default_train_config(overrides), options);
}

}  // namespace tessera::cli
