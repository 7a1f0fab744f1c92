// One AdamW update of many ranges, in one `at::_fused_adamw_` call for each
// device and dtype among them.
//
// The fused kernels walk memory: they take it on trust that a range's tensors
// have equal strides without holes. Here tensors that differ are brought into
// line first, at the price of a copy. The kernels do not bump version counters
// either; that is left to the caller, who knows whose memory a range is.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/adamw.h>

#include <vector>

namespace tessera {

/// Tensors of one shape on one device; the step is 0-dim fp32, and may be
/// shared by ranges.
struct UpdateRange {
  at::Tensor parameter;
  at::Tensor gradient;  // of any dtype and strides
  at::Tensor exp_avg;   // this and the next as `at::zeros_like(parameter)`
  at::Tensor exp_avg_sq;
  at::Tensor max_exp_avg_sq;  // defined if and only if amsgrad is on
  at::Tensor step;            // 1 in the first step
};

class FusedUpdate {
 public:
  /// A range without elements adds nothing.
  void add(UpdateRange range);

  /// Updates all ranges.
  void run(const torch::optim::AdamWOptions& options);

 private:
  struct Lists {
    std::vector<at::Tensor> parameters;
    std::vector<at::Tensor> gradients;
    std::vector<at::Tensor> exp_avgs;
    std::vector<at::Tensor> exp_avg_sqs;
    std::vector<at::Tensor> max_exp_avg_sqs;
    std::vector<at::Tensor> steps;
  };
  [[nodiscard]] Lists& lists_for(const at::Tensor& parameter);

  std::vector<Lists> lists_;  // one for each device and dtype
  struct WriteBack {
    at::Tensor parameter;
    at::Tensor updated;
  };
  std::vector<WriteBack> write_backs_;
};

}  // namespace tessera
