// Every torch::nn layer computes with parameters in bfloat16 under a
// MixedPrecisionPolicy, for its operators cast their inputs; or LibTorch says
// that it cannot.
#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/comm/world.h"
#include "tessera/mesh/device_mesh.h"
#include "tests/layers/probe.h"

namespace tessera::testing {
namespace {

const MixedPrecisionPolicy kBfloat16{.param_dtype = torch::kBFloat16,
                                     .reduce_dtype = torch::kFloat};

// What mixes dtypes outside of the operators that cast. A unit of its own
// without param_dtype, or inputs in bfloat16 (as `call` gives), help.
bool mixes_dtypes(const LayerCase& layer_case) {
  static const std::vector<std::string> names = {
      // Weights in bfloat16, running statistics in float.
      "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "BatchNorm2dEval",
      "Sequential",
      // Copies outputs into a tensor of its input's dtype.
      "AdaptiveLogSoftmaxWithLoss",
      // Differentiates by itself, not knowing of a cast.
      "TorchScript"};
  return std::ranges::find(names, layer_case.name) != names.end();
}

class LayerInBfloat16 : public ::testing::TestWithParam<LayerCase> {};

TEST_P(LayerInBfloat16, TrainsAlmostAsInFloatOrRaises) {
  const LayerCase& layer_case = GetParam();
  const DefaultDtype with_dtype(torch::kFloat);
  const Trained whole = train_whole(layer_case, 2);
  const auto train_sharded = [&](const World& world) {
    Probe probe = make_probe(layer_case);
    shard(probe, Nesting::layer_in_root, init_device_mesh(world), kBfloat16);
    if (mixes_dtypes(layer_case)) {
      EXPECT_ANY_THROW(probe->loss({world.rank(), 0}).backward());
      return;
    }
    // One rounding is 2^-9 of a value; a handful of layers add theirs up.
    expect_trains_like(whole, probe, world.rank(), 3e-2);
  };
  run_ranks(2, train_sharded, kDeadline);
}

INSTANTIATE_TEST_SUITE_P(All, LayerInBfloat16, ::testing::ValuesIn(all_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera::testing
