// All buckets of a model, in the order in which they leave.
//
// Inside parallel only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tessera/parallel/bucket.h"

namespace tessera {

class Buckets {
 public:
  /// parameters: numbered from 0 in what follows. cap_bytes: of a bucket.
  Buckets(std::vector<at::Tensor> parameters, int64_t cap_bytes,
          GradientMemory memory);

  /// Anew, for gradients that come in this order, each once.
  void build(const std::vector<size_t>& order);

  /// expected: of each parameter, whether its bucket waits for it.
  void begin_pass(const std::vector<bool>& expected);
  /// Starts the bucket of parameter `i` and those after it, as far as all their
  /// gradients are there.
  void note_gradient(size_t i, const HookCall& call);
  /// Those that have not begun.
  void start_all(const HookCall& call);
  /// See Bucket.
  void start_with_zeros(const HookCall& call);
  void finish(const std::vector<bool>& is_used);
  void abandon();

 private:
  const std::vector<at::Tensor> parameters_;
  const int64_t cap_bytes_;
  const GradientMemory memory_;
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_;  // of each parameter
  size_t next_ = 0;                // the first that has not begun
};

}  // namespace tessera
