// A small model around one layer, trained whole and sharded, and the comparison
// of both.
//
//   Probe: layer (of the case) -> mixed to 4 features -> head -> times scale
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "tessera/module/initializers.h"
#include "tessera/shard/options.h"
#include "tests/layers/layer_case.h"

namespace tessera::testing {

inline constexpr std::chrono::seconds kDeadline{30};

/// The dtype in which layers are built and inputs drawn, for a scope.
class DefaultDtype {
 public:
  explicit DefaultDtype(c10::ScalarType dtype)
      : before_(torch::get_default_dtype()) {
    torch::set_default_dtype(c10::scalarTypeToTypeMeta(dtype));
  }
  ~DefaultDtype() { torch::set_default_dtype(before_); }
  DefaultDtype(const DefaultDtype&) = delete;
  DefaultDtype& operator=(const DefaultDtype&) = delete;

 private:
  caffe2::TypeMeta before_;
};

/// Two units' worth of parameters beside the layer's: a head, and a parameter
/// that the root itself holds.
class ProbeImpl : public torch::nn::Module, public Initializable {
 public:
  explicit ProbeImpl(const LayerCase& layer_case);

  torch::Tensor loss(Batch batch);
  void reset_parameters() override;

  ModulePtr layer;
  torch::nn::Linear head{nullptr};
  torch::Tensor scale;

 private:
  decltype(LayerCase::forward) forward_;
};
TORCH_MODULE(Probe);

/// The same values whoever calls it: the process-wide generator is seeded, and
/// one rank builds at a time.
Probe make_probe(const LayerCase& layer_case);
/// The same on the meta device.
Probe make_probe_on_meta(const LayerCase& layer_case);

/// Which modules are given to fully_shard before the root.
enum class Nesting { one_unit, layer_in_root, unit_per_module };
std::string name_of(Nesting nesting);
/// Those that differ for this layer: one without modules below has two.
std::vector<Nesting> nestings_of(const LayerCase& layer_case);

void shard(Probe& probe, Nesting nesting, const DeviceMesh& mesh,
           const MixedPrecisionPolicy& policy = {});

using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;

/// Copies of all parameters, whole. Collective on a sharded model.
NamedTensors whole_weights(torch::nn::Module& module);

/// What training leaves to compare.
struct Trained {
  // By step and rank; the last row is after the last step, without gradients.
  std::vector<std::vector<double>> losses;
  // Names of the parameters that had a gradient, by step.
  std::vector<std::vector<std::string>> with_gradient;
  NamedTensors weights;
};

inline constexpr int kSteps = 2;

/// One process that trains on the batches of `num_ranks` ranks in turn, by SGD
/// on the mean of their losses. Expects every parameter to move but those that
/// may rest.
Trained train_whole(const LayerCase& layer_case, int num_ranks);

/// Trains the sharded `probe` on the batches of `rank`, and expects what
/// `whole` has. Differences are measured relative to the largest element, or 1.
void expect_trains_like(const Trained& whole, Probe& probe, int rank,
                        double tolerance);

void expect_close(const NamedTensors& got, const NamedTensors& expected,
                  double tolerance);

}  // namespace tessera::testing
