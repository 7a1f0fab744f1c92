// The golden numbers that PyTorch FSDP2 2.11 left in tests/fixtures/fsdp2; the
// head of make_fixtures.py there says what each field means.
#pragma once

#include <torch/torch.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace fsdp2_fixtures {

using torch::Tensor;
using Tensors = std::map<std::string, Tensor>;

struct Tolerance {
  double losses_rel;
  double grad_norms_rel;
  double final_abs;
};

/// One model with its batches and runs: NAME.json in a folder.
class Fixture {
 public:
  Fixture(std::string folder, const std::string& name);

  /// "mlp", "tied_lm" or "llama".
  [[nodiscard]] std::string model() const { return json_["model"]; }
  [[nodiscard]] const nlohmann::json& json() const { return json_; }
  [[nodiscard]] Tensors initial_weights() const;
  [[nodiscard]] int64_t num_steps() const { return json_["batches"].size(); }
  /// Rows [first, first + count) of a field of the batch of one step.
  [[nodiscard]] Tensor batch(int64_t step, const std::string& field,
                             int64_t first, int64_t count) const;
  [[nodiscard]] const nlohmann::json& run(const std::string& optimizer,
                                          const std::string& mode) const {
    return json_["runs"][optimizer][mode];
  }

 private:
  std::string folder_;
  nlohmann::json json_;
};

[[nodiscard]] Tolerance tolerance(const std::string& folder,
                                  const std::string& precision);

/// The largest distance between `tensor` and a golden tensor or digest of one
/// (values at some positions; the shape must agree).
[[nodiscard]] double distance(const Tensor& tensor,
                              const nlohmann::json& golden);

/// Reads float32 tensors from a safetensors file.
[[nodiscard]] Tensors read_safetensors(const std::string& path);

}  // namespace fsdp2_fixtures
