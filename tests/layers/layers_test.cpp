// Every torch::nn layer that has parameters trains sharded as it does in one
// process, or is refused by name.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/shard/fully_shard.h"
#include "tessera/shard/materialize.h"
#include "tests/layers/probe.h"

namespace tessera::testing {
namespace {

// One thread a rank: the ranks share the cores.
class OneThread : public ::testing::Environment {
 public:
  void SetUp() override { at::set_num_threads(1); }
};
[[maybe_unused]] const auto* const kOneThread =
    ::testing::AddGlobalTestEnvironment(new OneThread);

class LayerTraining
    : public ::testing::TestWithParam<std::tuple<LayerCase, c10::ScalarType>> {
};

// Ranks' gradients are summed in another order than one process sums them: some
// hundred roundings. In double 1e-9 leaves no room for anything else.
double tolerance_of(c10::ScalarType dtype) {
  return dtype == torch::kDouble ? 1e-9 : 2e-5;
}

void expect_trains_sharded(const LayerCase& layer_case, int num_ranks,
                           const std::vector<Nesting>& nestings,
                           double tolerance) {
  const Trained whole = train_whole(layer_case, num_ranks);
  const auto train_sharded = [&](const World& world) {
    const DeviceMesh mesh = init_device_mesh(world);
    for (const Nesting nesting : nestings) {
      SCOPED_TRACE(str(num_ranks, " ranks, ", name_of(nesting)));
      Probe probe = make_probe(layer_case);
      shard(probe, nesting, mesh);
      expect_trains_like(whole, probe, world.rank(), tolerance);
    }
  };
  run_ranks(num_ranks, train_sharded, kDeadline);
}

// Float differs from double by its kernels and alignments, not by its units:
// one world, one nesting.
TEST_P(LayerTraining, EqualsOneProcess) {
  const auto& [layer_case, dtype] = GetParam();
  const DefaultDtype with_dtype(dtype);
  const double tolerance = tolerance_of(dtype);
  if (dtype == torch::kFloat) {
    expect_trains_sharded(layer_case, 3, {Nesting::layer_in_root}, tolerance);
    return;
  }
  for (const int num_ranks : {2, 3}) {
    expect_trains_sharded(layer_case, num_ranks, nestings_of(layer_case),
                          tolerance);
  }
}

std::string name_of(
    const ::testing::TestParamInfo<LayerTraining::ParamType>& info) {
  const auto& [layer_case, dtype] = info.param;
  return layer_case.name + "_" + c10::toString(dtype);
}

INSTANTIATE_TEST_SUITE_P(All, LayerTraining,
                         ::testing::Combine(::testing::ValuesIn(all_cases()),
                                            ::testing::Values(torch::kDouble,
                                                              torch::kFloat)),
                         [](const auto& info) { return name_of(info); });

class LayerOnMeta : public ::testing::TestWithParam<LayerCase> {};

void expect_equal(const NamedTensors& got, const NamedTensors& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(torch::equal(got[i].second, expected[i].second))
        << expected[i].first;
  }
}

// Weights and loss of a model built on meta and materialised.
struct Materialized {
  NamedTensors weights;
  double loss = 0;
};

Materialized materialize_on(const DeviceMesh& mesh, const LayerCase& layer_case,
                            Nesting nesting) {
  Probe probe = make_probe_on_meta(layer_case);
  shard(probe, nesting, mesh);
  materialize(*probe, {.seed = 7});
  Materialized result;
  result.loss = probe->loss({0, 0}).item<double>();
  result.weights = whole_weights(*probe);
  return result;
}

TEST_P(LayerOnMeta, HasTheSameWeightsAtEveryWorldSizeAndNesting) {
  const LayerCase& layer_case = GetParam();
  const DefaultDtype with_dtype(torch::kDouble);
  Materialized alone;
  const auto materialize_alone = [&](const World& world) {
    const DeviceMesh mesh = init_device_mesh(world);
    alone = materialize_on(mesh, layer_case, Nesting::one_unit);
  };
  run_ranks(1, materialize_alone, kDeadline);
  EXPECT_TRUE(std::isfinite(alone.loss));
  const auto compare = [&](const World& world) {
    const DeviceMesh mesh = init_device_mesh(world);
    std::vector<Nesting> nestings = nestings_of(layer_case);
    if (world.size() == 3) nestings = {nestings.back()};  // the finest
    for (const Nesting nesting : nestings) {
      SCOPED_TRACE(str(world.size(), " ranks, ", name_of(nesting)));
      const Materialized got = materialize_on(mesh, layer_case, nesting);
      expect_equal(got.weights, alone.weights);
      EXPECT_NEAR(got.loss, alone.loss, 1e-9);
    }
  };
  run_ranks(2, compare, kDeadline);
  run_ranks(3, compare, kDeadline);
}

INSTANTIATE_TEST_SUITE_P(All, LayerOnMeta,
                         ::testing::ValuesIn(cases_to_initialise()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera::testing
