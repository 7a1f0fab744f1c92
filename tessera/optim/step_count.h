// How many steps each parameter has taken, kept on the device.
//
// The bias correction of Adam needs a count per parameter, because parameters
// can miss steps. Parameters that have always stepped together share one count;
// those that part (some have a gradient in this step, some have not) get one of
// their own from then on. The count is a tensor, so nothing waits for the
// device, and a captured CUDA graph counts on when it is replayed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace tessera {

struct StepCount {
  at::Tensor value;        // 0-dim, fp32 as the fused kernels want it
  size_t num_holders = 0;  // parameters that share it
};

/// A parameter's count; null before its first step.
using StepHandle = std::shared_ptr<StepCount>;

/// One parameter that is about to step.
struct Stepper {
  StepHandle* handle = nullptr;
  at::Device device = at::kCPU;
};

/// Adds one to the counts of `steppers`, which are distinct, and of nobody
/// else; or nothing where the 0-dim tensor `skip` is 1 instead of 0. Returns
/// whether some stepper's count is another tensor than before.
bool advance(const std::vector<Stepper>& steppers, const at::Tensor& skip = {});

/// Gives parameters counts that were saved: those that are given the same
/// number, one after the other, share one count again.
class StepAssigner {
 public:
  void assign(StepHandle& handle, double num_steps, at::Device device);
  /// The counts given so far may have moved: share them no more.
  void forget() { given_.clear(); }

 private:
  struct Given {
    StepHandle count;
    double num_steps;
    at::Device device;
  };
  std::vector<Given> given_;
};

}  // namespace tessera
