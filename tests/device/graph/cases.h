// Training steps that a graph must repeat to the bit.
#pragma once

#include <string>
#include <vector>

#include "tessera/shard/options.h"
#include "tessera/train/model_presets.h"

namespace tessera {

struct Case {
  std::string name;
  int micro_batches = 1;
  double max_norm = 1.0;  // 0: no clipping
  double dropout = 0;
  train::RecomputePolicy recompute = train::RecomputePolicy::none;
  train::ModelKernels kernels = train::ModelKernels::plain;
  bool bfloat16 = false;
  Reshard reshard = Reshard::automatic;
  size_t prefetch = 0;
  BackwardOverlap backward_overlap = BackwardOverlap::full;
  GatherCopy gather_copy = GatherCopy::none;
  bool clip_in_step = false;
  bool norm_in_backward = false;
  int rows = 4;
  int steps = 8;
  int evaluate_every = 0;
  bool step_in_backward = false;
  int load_before = -1;  // step before which weights and moments are written
  bool read_a_value = false;  // the body waits for the device
};

[[nodiscard]] std::vector<Case> cases();

}  // namespace tessera
