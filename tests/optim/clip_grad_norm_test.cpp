// clip_grad_norm_ against the norm of the concatenated gradients in fp64.
#include "tessera/optim/clip_grad_norm.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "test_shards.h"
#include "tests/support/gradients.h"

namespace tessera {
namespace {

using testing::Cut;
using testing::kNormTypes;
using testing::norm_of;
using testing::parameters_with;
using testing::TestShards;
using Tensors = std::vector<at::Tensor>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Rows: many, fewer than ranks, one, prime; one without elements.
Tensors random_tensors(at::ScalarType dtype, int seed = 3) {
  // One of its own: the ranks are threads that share the default generator.
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  Tensors result;
  for (std::vector<int64_t> sizes : std::vector<std::vector<int64_t>>{
           {8, 5}, {2, 3}, {1, 2, 2}, {13}, {0, 4}}) {
    result.push_back(torch::randn(sizes, generator, dtype));
  }
  return result;
}

Tensors joined(const Tensors& a, const Tensors& b) {
  Tensors all = a;
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

TEST(ClipGradNorm, MatchesTheNormOfAllGradientsOfPlainParameters) {
  for (double p : kNormTypes) {
    Tensors gradients = random_tensors(at::kDouble);
    Tensors parameters = parameters_with(gradients);
    const double expected = norm_of(gradients, p);
    at::Tensor norm = clip_grad_norm_(parameters, 0.5, {.norm_type = p});
    EXPECT_EQ(norm.dim(), 0);
    EXPECT_NEAR(norm.item<double>(), expected, 1e-12 * expected) << p;
    for (size_t i = 0; i < gradients.size(); ++i) {
      EXPECT_TRUE(at::allclose(parameters[i].grad(),
                               gradients[i] * 0.5 / (expected + 1e-6), 1e-12))
          << p;
    }
  }
}

TEST(ClipGradNorm, LeavesSmallGradientsExactlyAsTheyAre) {
  Tensors gradients = random_tensors(at::kFloat);
  for (double max_norm : {1e3, kInfinity}) {
    Tensors parameters = parameters_with(gradients);
    clip_grad_norm_(parameters, max_norm);
    for (size_t i = 0; i < gradients.size(); ++i) {
      EXPECT_TRUE(parameters[i].grad().equal(gradients[i]));
    }
  }
}

TEST(ClipGradNorm, IsZeroWithoutGradients) {
  Tensors parameters = {torch::ones({2}).set_requires_grad(true)};
  for (double p : kNormTypes) {
    EXPECT_EQ(clip_grad_norm_(parameters, 1, {.norm_type = p}).item<double>(),
              0);
    EXPECT_EQ(get_total_norm({}, {.norm_type = p}).item<double>(), 0);
  }
}

TEST(ClipGradNorm, CountsAParameterThatStandsTwiceOnce) {
  Tensors parameters = parameters_with({torch::full({4}, 2.0)});
  parameters.push_back(parameters[0]);
  EXPECT_EQ(clip_grad_norm_(parameters, 2).item<double>(), 4);
  EXPECT_NEAR(parameters[0].grad()[0].item<double>(), 1, 1e-5);
}

TEST(ClipGradNorm, IsPreciseOverLongSinglePrecisionGradients) {
  torch::manual_seed(1);
  Tensors gradients = {torch::randn({4'000'037})};
  TestShards shards(gradients);
  shards.set_gradients(gradients);
  // Summed in one go on the CPU, these are 1e-4 to 1e-3 off.
  for (double p : {1.0, 2.0, 3.0}) {
    const double expected = norm_of(gradients, p);
    const double plain =
        get_total_norm(parameters_with(gradients), {.norm_type = p})
            .item<double>();
    const double shard =
        get_total_norm(shards.shards(), {.norm_type = p}).item<double>();
    EXPECT_NEAR(plain / expected, 1, 3e-6) << p;
    EXPECT_NEAR(shard / expected, 1, 3e-6) << p;
  }
}

TEST(ClipGradNorm, TakesNormsOfLowPrecisionGradientsInSinglePrecision) {
  Tensors gradients = {torch::ones({4097}, at::kBFloat16),
                       torch::ones({3}, at::kHalf)};
  Tensors parameters = parameters_with(gradients);
  at::Tensor norm = clip_grad_norm_(parameters, 1);
  EXPECT_EQ(norm.scalar_type(), at::kFloat);
  EXPECT_NEAR(norm.item<double>(), std::sqrt(4100), 1e-4);
  // One rounding to bf16: 2^-9.
  EXPECT_NEAR(parameters[0].grad()[0].item<double>() * std::sqrt(4100), 1,
              0.002);
}

TEST(ClipGradNorm, CountsMixedDtypesInTheWidest) {
  Tensors parameters = parameters_with(
      {torch::full({1}, 3.0), torch::full({1}, 4.0, at::kDouble)});
  at::Tensor norm = get_total_norm(parameters);
  EXPECT_EQ(norm.scalar_type(), at::kDouble);
  EXPECT_NEAR(norm.item<double>(), 5, 1e-12);
}

TEST(ClipGradNorm, RefusesArgumentsThatCannotBeMeant) {
  Tensors parameters = parameters_with({torch::ones({4})});
  for (double p : {0.0, -1.0, -kInfinity, std::nan("")}) {
    EXPECT_THROW(clip_grad_norm_(parameters, 1, {.norm_type = p}),
                 InvalidArgument);
  }
  EXPECT_THROW(clip_grad_norm_(parameters, -1), InvalidArgument);
  EXPECT_THROW(clip_grad_norm_(parameters, std::nan("")), InvalidArgument);
  parameters[0].mutable_grad() = torch::ones({4}).to_sparse();
  EXPECT_THROW(clip_grad_norm_(parameters, 1), Unsupported);
}

TEST(ClipGradNorm, RaisesOnNonFiniteNormsBeforeTouchingGradients) {
  for (double bad : {kInfinity, std::nan("")}) {
    Tensors parameters = parameters_with({torch::ones({4}), torch::ones({1})});
    parameters[1].mutable_grad().fill_(bad);
    EXPECT_THROW(
        clip_grad_norm_(parameters, 1, {.on_nonfinite = NonFinite::raise}),
        InvalidState);
    EXPECT_TRUE(parameters[0].grad().eq(1).all().item<bool>());
    clip_grad_norm_(parameters, 1);
    const auto after = parameters[0].grad()[0].item<double>();
    EXPECT_TRUE(std::isnan(bad) ? std::isnan(after) : after == 0);
  }
}

TEST(ClipGradNorm, KeepsGapsZeroWhenTheNormIsNan) {
  Tensors gradients = random_tensors(at::kDouble);
  TestShards own(gradients);
  gradients[0] = torch::full_like(gradients[0], std::nan(""));
  own.set_gradients(gradients);
  clip_grad_norm_(own.shards(), 1);
  at::Tensor flat = own.master()->grad();
  int64_t num_nans = flat.isnan().sum().item<int64_t>();
  int64_t num_owned = 0;
  for (const auto& piece : own.master()->pieces) num_owned += piece.numel;
  EXPECT_EQ(num_nans, num_owned);
}

TEST(ClipGradNorm, SeesShardGradientsThatAreNoPieceOfTheFlatOne) {
  Tensors gradients = random_tensors(at::kDouble);
  TestShards own(gradients);
  own.set_gradients(gradients);
  own.shards()[0].mutable_grad() = gradients[0].clone();
  const double expected = norm_of(gradients, 2);
  EXPECT_NEAR(clip_grad_norm_(own.shards(), 1).item<double>(), expected,
              1e-12 * expected);
  EXPECT_NEAR(get_total_norm(own.shards()).item<double>(), 1, 1e-5);
}

/// Shards over all ranks, shards over the even and again over the odd ones, and
/// plain ones.
struct Mixture {
  Mixture(const World& world, at::ScalarType dtype, bool with_gradients)
      : whole(random_tensors(dtype, 1)),
        halves(random_tensors(dtype, 10)),
        plain(random_tensors(dtype, 20)),
        all(whole, cut(world, "all", 1)),
        half(halves, cut(world, "half", 2)),
        parameters(parameters_with(plain)) {
    if (with_gradients) {
      all.set_gradients(whole);
      half.set_gradients(halves);
    } else {
      for (auto& p : parameters) p.mutable_grad().reset();
    }
  }

  // Every `stride`-th rank, from this one's remainder.
  static Cut cut(const World& world, const std::string& name, int stride) {
    std::vector<int> ranks;
    int own = 0;
    for (int r = world.rank() % stride; r < world.size(); r += stride) {
      if (r == world.rank()) own = static_cast<int>(ranks.size());
      ranks.push_back(r);
    }
    const int size = static_cast<int>(ranks.size());
    return {own, size,
            world.make_communicator(
                name + std::to_string(world.rank() % stride), ranks)};
  }

  Tensors list() const {
    return joined(joined(all.shards(), parameters), half.shards());
  }

  Tensors whole, halves, plain;
  TestShards all, half;
  Tensors parameters;
};

class ClipOverRanks : public ::testing::TestWithParam<int> {};

TEST_P(ClipOverRanks, MatchesTheNormOfTheFullGradients) {
  run_ranks(GetParam(), [](const World& world) {
    for (double p : kNormTypes) {
      Tensors full = random_tensors(at::kDouble);
      TestShards own(full, Mixture::cut(world, str("p", p), 1));
      own.set_gradients(full);
      const double expected = norm_of(full, p);
      at::Tensor norm = clip_grad_norm_(own.shards(), 0.5, {.norm_type = p});
      EXPECT_NEAR(norm.item<double>(), expected, 1e-12 * expected) << p;
      for (size_t i = 0; i < full.size(); ++i) {
        EXPECT_TRUE(at::allclose(local(own.shards()[i].grad()),
                                 own.part_of(full[i]) * 0.5 / (expected + 1e-6),
                                 1e-12))
            << p;
      }
    }
  });
}

TEST_P(ClipOverRanks, IsTheSameBitForBitOnEveryRank) {
  for (double p : kNormTypes) {
    std::mutex mutex;
    std::vector<float> norms;
    run_ranks(GetParam(), [&](const World& world) {
      Tensors full = random_tensors(at::kFloat);
      TestShards own(full, Mixture::cut(world, "all", 1));
      own.set_gradients(full);
      at::Tensor norm = get_total_norm(own.shards(), {.norm_type = p});
      std::lock_guard lock(mutex);
      norms.push_back(norm.item<float>());
    });
    for (float norm : norms) EXPECT_EQ(norm, norms[0]) << p;
  }
}

TEST_P(ClipOverRanks, CountsEachParameterOnceInMixturesOfCommunicators) {
  run_ranks(GetParam(), [](const World& world) {
    Mixture model(world, at::kDouble, true);
    for (double p : kNormTypes) {
      const double expected =
          norm_of(joined(joined(model.whole, model.halves), model.plain), p);
      at::Tensor norm = get_total_norm(model.list(), {.norm_type = p});
      EXPECT_NEAR(norm.item<double>(), expected, 1e-12 * expected) << p;
    }
    clip_grad_norm_(model.list(), 1);
    EXPECT_NEAR(get_total_norm(model.list()).item<double>(), 1, 1e-5);
  });
}

TEST_P(ClipOverRanks, IsZeroWhenNoParameterHasAGradient) {
  run_ranks(GetParam(), [](const World& world) {
    Mixture model(world, at::kFloat, false);
    for (double p : kNormTypes) {
      at::Tensor norm = clip_grad_norm_(model.list(), 1, {.norm_type = p});
      EXPECT_EQ(norm.item<double>(), 0);
    }
  });
}

TEST_P(ClipOverRanks, OneRanksNanIsEveryRanksNan) {
  run_ranks(GetParam(), [](const World& world) {
    for (double p : kNormTypes) {
      Tensors full = {torch::ones({8, 2})};
      TestShards own(full, Mixture::cut(world, str("p", p), 1));
      full[0][7][1] = std::nan("");
      own.set_gradients(full);
      EXPECT_TRUE(std::isnan(
          get_total_norm(own.shards(), {.norm_type = p}).item<double>()))
          << p;
      EXPECT_THROW(
          clip_grad_norm_(own.shards(), 1,
                          {.norm_type = p, .on_nonfinite = NonFinite::raise}),
          InvalidState);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Optim, ClipOverRanks, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace tessera
