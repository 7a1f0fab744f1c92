// One model trained twice: plainly in one process, and sharded over ranks that
// are threads of this process. Losses, gradients and weights must be the same.
//
//   expect_agreement(make_net, [](nn::Module& m, const Turn& turn) {
//     return as_net(m).forward(input(turn)).pow(2).mean();
//   }, {.units = {"a", "b"}});
//
// Everything is double, so that only the order of sums can differ: 1e-9.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/module/traversal.h"
#include "tessera/shard/find_units.h"
#include "tessera/shard/full_parameters.h"
#include "tessera/shard/fully_shard.h"
#include "tessera/tensor/spread.h"

namespace tessera::test {

namespace nn = torch::nn;
using torch::Tensor;

using Model = std::shared_ptr<nn::Module>;
using Make = std::function<Model()>;
using Tensors = std::map<std::string, Tensor>;
using Optimizer = std::unique_ptr<torch::optim::Optimizer>;
using MakeOptimizer = std::function<Optimizer(std::vector<Tensor>)>;

inline constexpr std::chrono::seconds kDeadline{20};

/// Whose turn it is to compute a loss. A loss function that calls backward
/// itself multiplies by `share`: 1 on a rank, 1 / W in the plain reference.
struct Turn {
  int rank;
  int step;
  double share;
};
using Loss = std::function<Tensor(nn::Module&, const Turn&)>;

/// Double as default dtype, and one thread for each rank, while it lives.
class DoubleByDefault : public testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    torch::set_default_dtype(c10::scalarTypeToTypeMeta(torch::kDouble));
  }
  void TearDown() override {
    torch::set_default_dtype(c10::scalarTypeToTypeMeta(torch::kFloat));
  }
};

/// `run_ranks` with the deadline of these tests.
template <class Body>
void on_ranks(int world_size, Body&& body) {
  run_ranks(world_size, std::forward<Body>(body), kDeadline);
}

/// The same numbers for the same seed, on any thread.
inline Tensor noise(int seed, at::IntArrayRef sizes) {
  auto generator = at::detail::createCPUGenerator(seed);
  return torch::randn(sizes, generator, torch::kDouble);
}

/// The generator is shared by the ranks, who must all start alike.
inline Model build(const Make& make) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::manual_seed(1);
  return make();
}

/// What `run` throws, or "" when it returns.
template <class Run>
std::string message_of(Run&& run) {
  try {
    run();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

inline testing::AssertionResult says(const std::string& message,
                                     const std::string& part) {
  if (message.find(part) != std::string::npos) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure()
         << "'" << part
         << "' is not in: " << (message.empty() ? "(no error)" : message);
}

inline FullyShardOptions options_for(const DeviceMesh& mesh) {
  return {.mesh = mesh, .debug = Debug::poison_memory};
}

/// Shards the named modules, which come bottom-up, and then the root.
inline void shard(nn::Module& root, const FullyShardOptions& options,
                  const std::vector<std::string>& units) {
  for (const std::string& unit : units) {
    for (const auto& [name, module] : named_modules(root)) {
      if (name == unit) fully_shard(*module, options);
    }
  }
  fully_shard(root, options);
}

inline Model build_sharded(const World& world, const Make& make,
                           const std::vector<std::string>& units) {
  Model model = build(make);
  shard(*model, options_for(init_device_mesh(world)), units);
  return model;
}

inline void expect_close(const Tensor& got, const Tensor& want,
                         const std::string& what, double tolerance = 1e-9) {
  ASSERT_EQ(got.defined(), want.defined()) << what;
  if (!got.defined()) return;
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  if (got.numel() == 0) return;
  torch::NoGradGuard no_grad;
  const Tensor expected = want.to(torch::kDouble);
  const double scale = std::max(1.0, expected.abs().max().item<double>());
  const double error =
      (got.to(torch::kDouble) - expected).abs().max().item<double>();
  EXPECT_LE(error, tolerance * scale) << what;
}

inline void expect_close(const Tensors& got, const Tensors& want,
                         const std::string& what, double tolerance = 1e-9) {
  for (const auto& [name, tensor] : want) {
    const auto found = got.find(name);
    expect_close(found == got.end() ? Tensor() : found->second, tensor,
                 what + " of " + name, tolerance);
  }
  for (const auto& [name, tensor] : got) {
    EXPECT_TRUE(want.contains(name)) << what << " of " << name << " exists";
  }
}

// Plain modules ---------------------------------------------------------------

inline Tensors plain_values(nn::Module& module) {
  Tensors values;
  for (const auto& item : module.named_parameters()) {
    values[item.key()] = item.value().detach().clone();
  }
  return values;
}

inline Tensors plain_gradients(nn::Module& module) {
  Tensors gradients;
  for (const auto& item : module.named_parameters()) {
    const Tensor& gradient = item.value().grad();
    if (!gradient.defined()) continue;
    gradients[item.key()] = gradient.is_sparse() ? gradient.detach().to_dense()
                                                 : gradient.detach().clone();
  }
  return gradients;
}

// Sharded modules -------------------------------------------------------------

/// Every rank's numbers, in rank order. Collective.
inline std::vector<std::vector<double>> all_ranks(
    const World& world, const std::vector<double>& mine) {
  const auto* data = reinterpret_cast<const char*>(mine.data());
  std::vector<std::vector<double>> all;
  for (const std::string& bytes :
       world.exchange(str("test", world.next_id()),
                      std::string_view(data, mine.size() * sizeof(double)))) {
    all.emplace_back(bytes.size() / sizeof(double));
    std::copy(bytes.begin(), bytes.end(),
              reinterpret_cast<char*>(all.back().data()));
  }
  return all;
}

inline double mean_over_ranks(const World& world, double mine) {
  double sum = 0;
  for (const auto& numbers : all_ranks(world, {mine})) sum += numbers[0];
  return sum / world.size();
}

/// The whole parameters. Collective.
inline Tensors full_values(nn::Module& module) {
  FullParameters full(module, Write::discard);
  return plain_values(module);
}

/// The whole gradients, put together from the shards'. Collective. A shard's
/// gradient must exist on all ranks or on none.
inline Tensors full_gradients(const World& world, nn::Module& module) {
  std::vector<double> mine;
  for (const auto& item : module.named_parameters()) {
    const Tensor& gradient = item.value().grad();
    mine.push_back(gradient.defined());
    if (!gradient.defined()) continue;
    const Tensor part = local(gradient).to(torch::kDouble).contiguous();
    mine.push_back(static_cast<double>(part.numel()));
    mine.insert(mine.end(), part.const_data_ptr<double>(),
                part.const_data_ptr<double>() + part.numel());
  }
  const auto all = all_ranks(world, mine);
  std::vector<size_t> next(all.size(), 0);
  Tensors gradients;
  for (const auto& item : module.named_parameters()) {
    std::vector<double> whole;
    size_t defined_on = 0;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank].at(next[rank]++) == 0) continue;
      ++defined_on;
      const auto numel = static_cast<size_t>(all[rank].at(next[rank]++));
      const auto begin = all[rank].begin() + next[rank];
      whole.insert(whole.end(), begin, begin + numel);
      next[rank] += numel;
    }
    EXPECT_TRUE(defined_on == 0 || defined_on == all.size())
        << "the gradient of " << item.key() << " exists on " << defined_on
        << " of " << all.size() << " ranks";
    if (defined_on == 0) continue;
    gradients[item.key()] = torch::tensor(whole, torch::kDouble)
                                .view(spread_of(item.value())->global_sizes);
  }
  return gradients;
}

inline void expect_nothing_gathered(nn::Module& module, const char* when) {
  for (const auto& unit : units_below(module)) {
    EXPECT_FALSE(unit->gathered()) << unit->name() << " " << when;
  }
}

// Both ------------------------------------------------------------------------

inline Optimizer make_sgd(std::vector<Tensor> parameters) {
  return std::make_unique<torch::optim::SGD>(parameters,
                                             torch::optim::SGDOptions(0.1));
}

struct Setup {
  std::vector<std::string> units = {};
  int steps = 2;
  MakeOptimizer optimizer = make_sgd;
  // Run before and after each step; collective on ranks.
  std::function<void(nn::Module&, int)> before = {};
  std::function<void(nn::Module&, int)> after = {};
  double tolerance = 1e-9;
  std::vector<int> world_sizes = {1, 2, 3};
};

/// What one training run leaves, step by step.
struct Record {
  std::vector<double> losses;
  std::vector<Tensors> gradients;
  std::vector<Tensors> values;
};

inline Record train_plain(int world_size, const Make& make, const Loss& loss,
                          const Setup& setup) {
  Record record;
  Model model = build(make);
  const Optimizer optimizer = setup.optimizer(model->parameters());
  const double share = 1.0 / world_size;
  for (int step = 0; step < setup.steps; ++step) {
    if (setup.before) setup.before(*model, step);
    optimizer->zero_grad();
    double sum = 0;
    for (int rank = 0; rank < world_size; ++rank) {
      const Tensor part = loss(*model, {rank, step, share}) * share;
      sum += part.item<double>();
      part.backward();
    }
    record.losses.push_back(sum);
    record.gradients.push_back(plain_gradients(*model));
    optimizer->step();
    if (setup.after) setup.after(*model, step);
    record.values.push_back(plain_values(*model));
  }
  return record;
}

inline void train_sharded(const World& world, const Make& make,
                          const Loss& loss, const Setup& setup,
                          const Record& want) {
  Model model = build_sharded(world, make, setup.units);
  const Optimizer optimizer = setup.optimizer(model->parameters());
  for (int step = 0; step < setup.steps; ++step) {
    const std::string at =
        str(" at W = ", world.size(), ", step ", step, ", rank ", world.rank());
    if (setup.before) setup.before(*model, step);
    optimizer->zero_grad();
    const Tensor mine = loss(*model, {world.rank(), step, 1});
    mine.backward();
    expect_nothing_gathered(*model, "after backward");
    EXPECT_NEAR(mean_over_ranks(world, mine.item<double>()), want.losses[step],
                setup.tolerance)
        << "loss" << at;
    expect_close(full_gradients(world, *model), want.gradients[step],
                 "gradient" + at, setup.tolerance);
    optimizer->step();
    if (setup.after) setup.after(*model, step);
    expect_close(full_values(*model), want.values[step], "value" + at,
                 setup.tolerance);
  }
}

inline void expect_agreement(const Make& make, const Loss& loss,
                             const Setup& setup = {}) {
  for (const int world_size : setup.world_sizes) {
    const Record want = train_plain(world_size, make, loss, setup);
    on_ranks(world_size, [&](const World& world) {
      train_sharded(world, make, loss, setup, want);
    });
  }
}

}  // namespace tessera::test
