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
  at::Tensor copy = {};       // of the parameter in another dtype, or undefined
};

/// Numbers that may lie on a device, where nothing waits for them; each 0-dim,
/// or undefined.
struct UpdateTerms {
  at::Tensor skip;    // not 0: everything stays as it is
  at::Tensor factor;  // of the gradients
};

class FusedUpdate {
 public:
  /// A range without elements adds nothing.
  void add(UpdateRange range);

  /// The learning rate as a 0-dim fp32 tensor on a device.
  using RateOn = std::function<at::Tensor(c10::Device)>;

  /// Updates all ranges and their copies. On CUDA the kernels read the rate
  /// from `rate_on`; on CPU it is that of `options`. Where there is no kernel
  /// that takes a factor, the gradients are multiplied in place.
  void run(const torch::optim::AdamWOptions& options, const RateOn& rate_on,
           const UpdateTerms& terms = {});

 private:
  struct Lists {
    std::vector<at::Tensor> parameters;
    std::vector<at::Tensor> gradients;
    std::vector<at::Tensor> exp_avgs;
    std::vector<at::Tensor> exp_avg_sqs;
    std::vector<at::Tensor> max_exp_avg_sqs;
    std::vector<at::Tensor> steps;
    std::vector<at::Tensor> copies;
  };
  [[nodiscard]] Lists& lists_for(const at::Tensor& parameter);
  /// Each range in one pass, in a kernel of ours; false where there is none.
  [[nodiscard]] static bool update_in_one_pass(
      Lists& lists, const torch::optim::AdamWOptions& options,
      const RateOn& rate_on, const UpdateTerms& terms);
  static void update(Lists& lists, const torch::optim::AdamWOptions& options,
                     const RateOn& rate_on, const UpdateTerms& terms);

  std::vector<Lists> lists_;  // one for each device and dtype
  struct WriteBack {
    at::Tensor parameter;
    at::Tensor updated;
  };
  std::vector<WriteBack> write_backs_;
};

}  // namespace tessera
