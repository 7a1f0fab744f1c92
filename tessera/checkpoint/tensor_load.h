// One tensor of a state that is being loaded.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/box_reads.h"
#include "tessera/state/state_dict.h"

namespace tessera::checkpoint {

/// Parts may be read by threads in any order, each once. What is contiguous, in
/// host memory and of the stored dtype is read in place; all else by way of
/// kMostPart bytes of host memory, pinned for a GPU. The reader and the tensor
/// outlive it.
class TensorLoad {
 public:
  /// Reads what stands around the data. Errors: CheckpointError.
  TensorLoad(const CheckpointReader& reader, const std::string& key,
             const StateTensor& tensor);

  [[nodiscard]] size_t num_parts() const { return parts_.size(); }
  /// Errors: CheckpointError.
  void read(size_t part);

 private:
  const StateTensor& tensor_;
  c10::ScalarType stored_;
  bool in_place_;
  std::deque<BoxReads> boxes_;
  std::vector<std::pair<size_t, size_t>> parts_;  // box, and its part
};

}  // namespace tessera::checkpoint
