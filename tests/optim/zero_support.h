// Parameters and optimizers for the tests of ZeroRedundancyOptimizer. Ranks are
// threads; all that is random follows from seeds.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <vector>

#include "tessera/comm/distributed.h"
#include "tessera/optim/zero_redundancy_optimizer.h"
#include "tests/support/agreement.h"

namespace tessera::test {

using Parameters = std::vector<Tensor>;
using Group = torch::optim::OptimizerParamGroup;
using Groups = std::vector<Group>;

inline constexpr auto kViews = {BucketView::off, BucketView::on};

inline ZeroOptions zero_options(const World& world,
                                BucketView view = BucketView::off) {
  return {.group = distributed::new_group(world),
          .parameters_as_bucket_view = view};
}

inline Tensor parameter(int seed, at::IntArrayRef sizes) {
  return noise(seed, sizes).set_requires_grad(true);
}

/// Of 35, 5, 12, 1, 221, 0 and (not contiguous) 24 elements.
inline Parameters parameters(int seed = 1) {
  Parameters all;
  for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{
           {7, 5}, {5}, {3, 2, 2}, {1}, {13, 17}, {0, 4}}) {
    all.push_back(parameter(seed++, sizes));
  }
  all.push_back(noise(seed, {4, 6}).t().set_requires_grad(true));
  return all;
}

/// Gradients of step `step`; parameter i has none now and then.
inline void set_gradients(const Parameters& all, int step, int seed = 0) {
  for (size_t i = 0; i < all.size(); ++i) {
    const int number = static_cast<int>(i);
    const bool has = i == 0 || (step + number) % (number + 1) != 0;
    all[i].mutable_grad() =
        has ? noise(1000 + seed + 100 * step + number, all[i].sizes())
                  .to(all[i].scalar_type())
            : Tensor();
  }
}

inline Parameters values(const Parameters& all) {
  Parameters copies;
  for (const Tensor& one : all) copies.push_back(one.detach().clone());
  return copies;
}

inline void expect_equal(const Parameters& got, const Parameters& want,
                         const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(torch::equal(got[i], want[i]))
        << what << ", parameter " << i << ":\n"
        << got[i] << "\nexpected\n"
        << want[i];
  }
}

/// Two groups, every second parameter each; the second with its own options.
template <class Options>
Groups two_groups(const Parameters& all, const Options& first,
                  const Options& second) {
  Parameters even, odd;
  for (size_t i = 0; i < all.size(); ++i)
    (i % 2 ? odd : even).push_back(all[i]);
  Groups groups;
  groups.emplace_back(even, std::make_unique<Options>(first));
  groups.emplace_back(odd, std::make_unique<Options>(second));
  return groups;
}

/// Elements of all state tensors that a torch::optim::AdamW holds.
inline int64_t numel_of_state(torch::optim::Optimizer& optimizer) {
  int64_t numel = 0;
  for (const auto& [key, state] : optimizer.state()) {
    const auto& adamw =
        static_cast<const torch::optim::AdamWParamState&>(*state);
    numel += adamw.exp_avg().numel() + adamw.exp_avg_sq().numel();
  }
  return numel;
}

}  // namespace tessera::test
