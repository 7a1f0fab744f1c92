// What else people do with the weights of a layer: autocast, conversions,
// statistics.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include <ostream>

#include "tessera/comm/world.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/shard/find_units.h"
#include "tessera/shard/fully_shard.h"
#include "tests/layers/probe.h"

namespace tessera::testing {

namespace nn = torch::nn;
using torch::Tensor;

struct Conversion {
  std::string name;
  std::function<Tensor(const Tensor&)> convert;
};

// What GoogleTest prints of a parameter.
void PrintTo(const Conversion& conversion, std::ostream* out) {
  *out << conversion.name;
}

namespace {

class CpuAutocast {
 public:
  CpuAutocast() {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::increment_nesting();
  }
  ~CpuAutocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  CpuAutocast(const CpuAutocast&) = delete;
  CpuAutocast& operator=(const CpuAutocast&) = delete;
};

LayerCase autocast_case() {
  const auto run = [](nn::SequentialImpl& layers, Batch batch) {
    const CpuAutocast autocast;
    const Tensor y = layers.forward(values(batch, {4, 3, 7}));
    EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
    return y.to(torch::kFloat);
  };
  LayerCase result = layer_with<nn::Sequential>("Autocast", run);
  result.make = []() -> ModulePtr {
    return nn::Sequential(nn::Conv1d(3, 4, 3), nn::Flatten(), nn::Linear(20, 2))
        .ptr();
  };
  return result;
}

TEST(Autocast, TrainsShardedLayersAsOneProcess) {
  const DefaultDtype with_dtype(torch::kFloat);
  const LayerCase layer_case = autocast_case();
  const Trained whole = train_whole(layer_case, 2);
  const auto train_sharded = [&](const World& world) {
    const DeviceMesh mesh = init_device_mesh(world);
    for (const Nesting nesting : nestings_of(layer_case)) {
      SCOPED_TRACE(name_of(nesting));
      Probe probe = make_probe(layer_case);
      shard(probe, nesting, mesh);
      // Weights that differ in their last bit may differ in the last bit of
      // bfloat16 too, which is 2^-8; few of a sum's terms do.
      expect_trains_like(whole, probe, world.rank(), 1e-2);
    }
  };
  run_ranks(2, train_sharded, kDeadline);
}

TEST(BatchNorm, KeepsTheRunningStatisticsOfTheRanksOwnBatches) {
  const DefaultDtype with_dtype(torch::kDouble);
  const auto run_ranks_batches = [](nn::BatchNorm1d& norm, int rank) {
    for (int step = 0; step < 3; ++step) {
      norm->forward(values({rank, step}, {6, 5})).pow(2).mean().backward();
    }
  };
  run_ranks(
      2,
      [&](const World& world) {
        nn::BatchNorm1d whole(5), sharded(5);
        fully_shard(*sharded, {.mesh = init_device_mesh(world),
                               .debug = Debug::poison_memory});
        run_ranks_batches(whole, world.rank());
        run_ranks_batches(sharded, world.rank());
        EXPECT_TRUE(torch::equal(sharded->running_mean, whole->running_mean));
        EXPECT_TRUE(torch::equal(sharded->running_var, whole->running_var));
        EXPECT_EQ(sharded->num_batches_tracked.item<int64_t>(), 3);
      },
      kDeadline);
}

std::vector<Conversion> conversions() {
  using T = const Tensor&;
  return {
      {"ToSparse", [](T w) { return w.to_sparse().to_dense(); }},
      {"ToSparseCsr", [](T w) { return w.to_sparse_csr().to_dense(); }},
      {"ToMkldnn",
       [](T w) { return w.to(torch::kFloat).to_mkldnn().to_dense(); }},
      {"QuantizePerTensor",
       [](T w) {
         return at::quantize_per_tensor(w.to(torch::kFloat), 0.01, 0,
                                        torch::kQInt8)
             .dequantize();
       }},
      {"QuantizePerChannel",
       [](T w) {
         return at::quantize_per_channel(
                    w.to(torch::kFloat), torch::full({8}, 0.01),
                    torch::zeros({8}, torch::kLong), 0, torch::kQInt8)
             .dequantize();
       }},
      {"FakeQuantize",
       [](T w) {
         return torch::fake_quantize_per_tensor_affine(w, 0.01, 0, -128, 127);
       }},
      {"ToFloat", [](T w) { return w.to(torch::kFloat); }},
      {"ToHalf", [](T w) { return w.to(torch::kHalf); }},
      {"ToBfloat16", [](T w) { return w.to(torch::kBFloat16); }},
      {"ToItsOwnDtype", [](T w) { return w.to(torch::kDouble).clone(); }},
      {"Cpu", [](T w) { return w.cpu().clone(); }},
      {"ViewAsComplex",
       [](T w) {
         return torch::view_as_real(torch::view_as_complex(w.view({8, 3, 2})))
             .clone();
       }},
      {"ViewAsIntegers", [](T w) { return w.view(torch::kLong).clone(); }},
      {"Unfold", [](T w) { return w.unfold(0, 2, 1).clone(); }},
      {"TransposedContiguous", [](T w) { return w.t().contiguous(); }},
      {"Fft",
       [](T w) { return torch::real(torch::fft_ifft(torch::fft_fft(w))); }},
      {"MatrixTranspose", [](T w) { return w.mT().clone(); }},
      {"Diagonal", [](T w) { return w.diagonal().clone(); }},
      {"Unbind", [](T w) { return torch::stack(w.unbind(0)); }},
      {"TensorSplit", [](T w) { return torch::cat(w.tensor_split(3)); }},
      {"Expand",
       [](T w) {
         return w.expand({2, 8, 6}).mean(0);
       }},
      {"Where", [](T w) { return torch::where(w > 0, w, -w); }},
      {"SingularValues", [](T w) { return torch::linalg_svdvals(w); }},
      {"Cdist", [](T w) { return torch::cdist(w, w); }},
      {"Alias", [](T w) { return at::alias(w).clone(); }},
      {"DropoutInEvaluation",
       [](T w) { return torch::dropout(w, 0.5, false).clone(); }},
      {"LiftFresh", [](T w) { return at::lift_fresh(w).clone(); }},
      {"VariableData", [](T w) { return w.variable_data().clone(); }},
      {"Data", [](T w) { return w.data().clone(); }},
      {"Item", [](T w) { return torch::tensor(w[7][5].item<double>()); }},
      {"MaskedSelect", [](T w) { return w.masked_select(w > 0); }},
      {"TypedPointer",
       [](T w) {
         const Tensor whole = w.cpu();
         return torch::tensor(whole.const_data_ptr<double>()[47]);
       }},
      {"UntypedPointer",
       [](T w) {
         const Tensor whole = w.cpu().contiguous();
         const auto* data = static_cast<double*>(whole.data_ptr());
         return torch::tensor(data ? data[47] : NAN);
       }},
  };
}

class ConversionOfShardedWeight : public ::testing::TestWithParam<Conversion> {
};

TEST_P(ConversionOfShardedWeight, IsThatOfTheWholeWeight) {
  const Tensor whole = values({}, {8, 6}).to(torch::kDouble);
  const auto& convert = GetParam().convert;
  run_ranks(
      2,
      [&](const World& world) {
        nn::Linear linear(6, 8);
        linear->to(torch::kDouble);
        torch::NoGradGuard no_grad;
        linear->weight.copy_(whole);
        linear->bias.zero_();
        fully_shard(*linear, {.mesh = init_device_mesh(world),
                              .debug = Debug::poison_memory});
        ASSERT_FALSE(units_of(*linear)[0]->gathered());
        EXPECT_TRUE(torch::equal(convert(linear->weight), convert(whole)));
      },
      kDeadline);
}

INSTANTIATE_TEST_SUITE_P(All, ConversionOfShardedWeight,
                         ::testing::ValuesIn(conversions()),
                         [](const auto& info) { return info.param.name; });

// `contiguous` of a contiguous tensor is decided in LibTorch's header, where
// nothing can be gathered: the pointer behind it must not look usable.
TEST(PointerOfShardedWeight, IsRefusedBehindContiguousAndGivenByGathered) {
  const DefaultDtype with_dtype(torch::kDouble);
  run_ranks(
      2,
      [&](const World& world) {
        nn::Linear linear(6, 8);
        torch::NoGradGuard no_grad;
        linear->weight.fill_(3);
        linear->bias.zero_();
        fully_shard(*linear, {.mesh = init_device_mesh(world)});
        EXPECT_THROW((void)linear->weight.contiguous().const_data_ptr<double>(),
                     c10::Error);
        EXPECT_EQ(gathered(linear->weight).const_data_ptr<double>()[47], 3);
      },
      kDeadline);
}

TEST(ComparisonOfShardedWeight, SeesTheWholeWeight) {
  const DefaultDtype with_dtype(torch::kDouble);
  const Tensor whole = values({}, {8, 6});
  run_ranks(
      2,
      [&](const World& world) {
        nn::Linear linear(6, 8);
        torch::NoGradGuard no_grad;
        linear->weight.copy_(whole);
        linear->bias.zero_();
        fully_shard(*linear, {.mesh = init_device_mesh(world)});
        EXPECT_TRUE(linear->weight.equal(whole));
        reshard(*linear);
        EXPECT_TRUE(linear->weight.allclose(whole));
        reshard(*linear);
        EXPECT_EQ(linear->weight.max().item<double>(),
                  whole.max().item<double>());
      },
      kDeadline);
}

}  // namespace
}  // namespace tessera::testing
