// Gradients that travel together, as communication hooks see them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace tessera {

/// One bucket of a DistributedDataParallel, in one backward pass.
class GradientBucket {
 public:
  GradientBucket(size_t index, bool is_last, int64_t divisor, at::Tensor buffer,
                 std::vector<at::Tensor> gradients,
                 std::vector<at::Tensor> parameters)
      : index_(index),
        is_last_(is_last),
        divisor_(divisor),
        buffer_(std::move(buffer)),
        gradients_(std::move(gradients)),
        parameters_(std::move(parameters)) {}

  /// Buckets leave in this order.
  [[nodiscard]] size_t index() const { return index_; }
  [[nodiscard]] bool is_last() const { return is_last_; }
  /// By what a mean divides: the ranks, or in a join those with batches, where
  /// that was asked for.
  [[nodiscard]] int64_t divisor() const { return divisor_; }
  /// All gradients, one after the other: 1-D, of one dtype and device. This
  /// rank's own, not divided by anything.
  [[nodiscard]] const at::Tensor& buffer() const { return buffer_; }
  /// Views of the buffer, in the parameters' shapes.
  [[nodiscard]] const std::vector<at::Tensor>& gradients() const {
    return gradients_;
  }
  [[nodiscard]] const std::vector<at::Tensor>& parameters() const {
    return parameters_;
  }

 private:
  size_t index_;
  bool is_last_;
  int64_t divisor_;
  at::Tensor buffer_;
  std::vector<at::Tensor> gradients_;
  std::vector<at::Tensor> parameters_;
};

/// A reduction under way: called once, at the end of backward, it returns what
/// the gradients are to be, as `buffer` in size and device; another dtype is
/// cast.
using ReducedBucket = std::function<at::Tensor()>;

/// Called for each bucket when its gradients are there, on all ranks in one
/// order. It starts whatever brings the ranks' gradients together and returns
/// without waiting for it; the result is taken as it is, so whoever wants a
/// mean divides.
using CommHook = std::function<ReducedBucket(const GradientBucket&)>;

}  // namespace tessera
