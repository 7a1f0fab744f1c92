// Trains one model plainly or sharded, on the same global batches.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/shard/options.h"
#include "tests/agreement/models.h"

namespace agreement {

enum class Optimizer { sgd, adamw, fused_adamw };
enum class Build { eager, meta };
enum class Spread { fully_shard, replicate };
/// What micro-batches but the last of a step leave out.
enum class Accumulate { without_sync, without_all_reduce };

struct Job {
  NamedModel model;
  Optimizer optimizer = Optimizer::sgd;
  Build build = Build::eager;
  Spread spread = Spread::fully_shard;
  tessera::ReshardAfterForward reshard = tessera::Reshard::automatic;
  int accumulate = 1;  // micro-batches a step
  Accumulate accumulate_by = Accumulate::without_sync;
  tessera::Reshard after_backward = tessera::Reshard::always;
  // Parameters that have this dim are cut along it, others along dim 0.
  int64_t shard_dim = 0;
  std::optional<tessera::CPUOffloadPolicy> offload = {};
  int steps = 4;
  std::optional<double> clip = {};
  std::optional<c10::ScalarType> param_dtype = {};
  std::shared_ptr<tessera::GatherTransform> gather_transform = {};
  // Sharded training is scaled by a GradScaler, and in this step the last
  // rank's loss is infinite: no training takes it.
  std::optional<int> overflow_at = {};
  c10::Device device = c10::kCPU;

  [[nodiscard]] std::string describe() const;
};

struct UnitReport {
  std::string name;
  bool is_root = false;
  bool trainable = false;
  int64_t gathers = 0;  // in the last step
  int64_t reduces = 0;
};

struct Outcome {
  std::vector<double> losses;             // over the global batch
  std::vector<double> norms;              // when clipped
  std::map<std::string, Tensor> weights;  // whole, after the last step
  std::vector<UnitReport> units;
  int64_t peak_backward_bytes = 0;  // of full parameters, in the last backward
  int64_t largest_unit_bytes = 0;
  int64_t root_bytes = 0;
  int64_t bytes_after = 0;  // of full parameters still gathered
};

/// One process, the whole batch.
[[nodiscard]] Outcome train_plain(const Job& job);

/// This rank of `mesh`, its part of the batch. `weights` on rank 0 only.
[[nodiscard]] Outcome train_sharded(const Job& job,
                                    const tessera::DeviceMesh& mesh);

}  // namespace agreement
