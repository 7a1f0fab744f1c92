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

#include <functional>
#include <optional>
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

  /// The learning rate as a 0-dim fp32 tensor on a device.
  using RateOn = std::function<at::Tensor(c10::Device)>;

  /// Updates all ranges. On CUDA the kernels read the rate from `rate_on`; on
  /// CPU it is that of `options`. Where `skip` is defined and not zero, they
  /// leave everything as it is.
  void run(const torch::optim::AdamWOptions& options, const RateOn& rate_on,
           const at::Tensor& skip = {});

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
  static void update(Lists& lists, const torch::optim::AdamWOptions& options,
                     const RateOn& rate_on,
                     const std::optional<at::Tensor>& skip);

  std::vector<Lists> lists_;  // one for each device and dtype
  struct WriteBack {
    at::Tensor parameter;
    at::Tensor updated;
  };
  std::vector<WriteBack> write_backs_;
};

}  // namespace tessera
