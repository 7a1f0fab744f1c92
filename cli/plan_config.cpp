#include "cli/plan_config.h"

#include "tessera/base/error.h"
#include "tessera/train/step_shape.h"
#include "tessera/train/train_config.h"

namespace tessera::cli {
namespace {

using train::PlanReshard;
using train::TrainConfig;

int64_t bytes_of(train::Precision dtype) {
  return dtype == train::Precision::bfloat16 ? 2 : 4;
}

PlanReshard reshard_of(train::ReshardPolicy policy) {
  switch (policy) {
    case train::ReshardPolicy::always:
      return PlanReshard::always;
    case train::ReshardPolicy::never:
      return PlanReshard::never;
    case train::ReshardPolicy::automatic:
      break;
  }
  return PlanReshard::automatic;
}

/// The plan asks for no token file; the first override is the weakest.
TrainConfig read(const std::string& path, std::vector<std::string> overrides) {
  overrides.insert(overrides.begin(), "data.tokens=none");
  return train::read_train_config(path, overrides);
}

}  // namespace

void read_plan_config(const std::string& path,
                      const std::vector<std::string>& overrides,
                      train::PlanOptions& options) {
  require(options.ranks >= 1, [&] {
    return str("plan: ranks is ", options.ranks, "; give 1 or more.");
  });
  const TrainConfig config = read(path, overrides);
  require(config.shard.strategy == train::Strategy::fully_shard, [&] {
    return str("plan: shard.strategy of '", path,
               "' is replicate; tessera plan knows fully_shard.");
  });
  options.model = config.model;
  options.batch = config.train.batch;
  options.micro_batches =
      train::step_shape(config, static_cast<int>(options.ranks)).micro_batches;
  options.compute_bytes = bytes_of(config.shard.param_dtype);
  options.reduce_bytes = bytes_of(config.shard.reduce_dtype);
  options.reshard = reshard_of(config.shard.reshard);
}

}  // namespace tessera::cli
