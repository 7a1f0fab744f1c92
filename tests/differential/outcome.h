// What one training of a case gave, in the form that Python writes too:
//
//   losses, evaluations   one number a step, the mean over ranks
//   norms                 of all gradients, before clipping, one a step
//   gradients             {step: {parameter: numbers, or null for none}}
//   inputs                gradients of rank 0's inputs, one list a step
//   weights               {parameter: numbers}, after the last step
#pragma once

#include <torch/types.h>

#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/tensor/box.h"

namespace differential {

using Json = nlohmann::json;
using Boxes = std::vector<tessera::Box>;

/// Filled by all ranks, which are threads.
class Outcome {
 public:
  Outcome(int num_ranks, int num_steps);

  /// Adds this rank's share of the mean.
  void add_loss(int step, double loss);
  void add_evaluation(int step, double loss);
  void set_norm(int step, double norm);
  void set_input_gradient(int step, const torch::Tensor& gradient);
  void set_weight(const std::string& name, const torch::Tensor& weight);

  /// This rank's part of a gradient; undefined: it has none.
  void add_gradient(int step, const std::string& name, at::IntArrayRef sizes,
                    const Boxes& boxes, const torch::Tensor& part);
  /// The same for a gradient that this rank holds whole.
  void add_gradient(int step, const std::string& name,
                    const torch::Tensor& gradient);

  /// Errors: std::logic_error when only some ranks had a gradient, or ranks
  ///         that hold the same part hold other numbers.
  [[nodiscard]] Json json() const;

 private:
  struct Gradient {
    torch::Tensor whole;  // NaN where no rank has written
    int had = 0;
    int had_none = 0;
    bool replicas_differ = false;
  };
  [[nodiscard]] Json gradient_json(const std::string& name,
                                   const Gradient& gradient) const;

  int num_ranks_;
  std::mutex mutex_;
  std::vector<double> losses_, evaluations_, norms_;
  std::vector<torch::Tensor> inputs_;
  std::vector<std::map<std::string, Gradient>> gradients_;
  std::map<std::string, torch::Tensor> weights_;
};

}  // namespace differential
