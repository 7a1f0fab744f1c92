// Sends parameters from the rank that steps each to all others.
//
//   BucketView::off   | large |  | large |  | small, small, ... |
//                       in place, each        packed for the way
//   BucketView::on    | all of one owner, device and dtype: the parameters are
//                       views of it |
//
// Large ones and buckets go as they lie. The small ones of an owner take memory
// of their own for the way, once more on each rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "tessera/comm/distributed.h"

namespace tessera {

/// Where parameters lie.
enum class BucketView {
  off,  // where they were
  on,   // in one tensor for each owner, device and dtype: fewer broadcasts, and
        // no copies. The data of each parameter is replaced by a view of it
};

/// A parameter and the group rank that steps it.
struct OwnedParameter {
  at::Tensor tensor;
  int owner = 0;
  bool trainable = true;  // what is frozen is not sent
};

class ParameterBroadcast {
 public:
  /// All ranks of `group` give the same parameters in the same order, each
  /// once. Nothing is sent. With BucketView::on the parameters are moved to
  /// buckets, which takes the memory of one bucket beside them meanwhile.
  ParameterBroadcast(distributed::ProcessGroup group,
                     const std::vector<OwnedParameter>& parameters,
                     BucketView view);

  /// Overwrites each parameter by the values of its owner. Collective.
  /// Errors: CommError; InvalidState for a parameter that was taken out of its
  ///         bucket.
  void run() const;

 private:
  // What travels as one.
  struct Message {
    int owner = 0;
    std::vector<at::Tensor> parameters;
    int64_t num_bytes = 0;
    bool in_place = false;  // one parameter, as it lies
    at::Tensor bucket;      // that the parameters are views of
    std::vector<int64_t> offsets;
  };

  void plan(const std::vector<OwnedParameter>& parameters, BucketView view);
  void move_to_bucket(Message& message) const;
  void check_in_bucket(const Message& message) const;
  [[nodiscard]] at::Tensor buffer_of(const Message& message) const;
  [[nodiscard]] bool is_owner(const Message& message) const;
  void deliver(const Message& message, const at::Tensor& buffer) const;

  distributed::ProcessGroup group_;
  std::vector<Message> messages_;
};

}  // namespace tessera
