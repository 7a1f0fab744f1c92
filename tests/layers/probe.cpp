#include "tests/layers/probe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "tessera/module/on_meta.h"
#include "tessera/module/traversal.h"
#include "tessera/shard/full_parameters.h"
#include "tessera/shard/fully_shard.h"

namespace tessera::testing {

namespace nn = torch::nn;
using torch::Tensor;

namespace {

constexpr double kInitialScale = 0.7;

// Any features to `width` of them, by weights that tell all elements apart.
Tensor mix(const Tensor& features, int64_t width) {
  const Tensor rows =
      features.to(torch::get_default_dtype()).reshape({features.size(0), -1});
  const int64_t n = rows.size(1);
  const Tensor weights =
      torch::cos(torch::arange(n * width, rows.options())).view({n, width});
  return rows.matmul(weights) / std::sqrt(static_cast<double>(n));
}

std::mutex& generator_mutex() {
  static std::mutex shared;
  return shared;
}

torch::optim::SGD make_optimizer(nn::Module& module) {
  return torch::optim::SGD(module.parameters(), torch::optim::SGDOptions(0.1));
}

std::vector<std::string> names_with_gradient(nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& item : module.named_parameters()) {
    if (item.value().grad().defined()) names.push_back(item.key());
  }
  return names;
}

double evaluate(Probe& probe, Batch batch) {
  torch::NoGradGuard no_grad;
  return probe->loss(batch).item<double>();
}

void expect_moved(const NamedTensors& before, const NamedTensors& after,
                  const std::vector<std::string>& may_rest) {
  for (size_t i = 0; i < before.size(); ++i) {
    const auto& [name, value] = before[i];
    if (std::ranges::find(may_rest, name) != may_rest.end()) continue;
    EXPECT_FALSE(torch::equal(value, after[i].second))
        << name << " does not take part in the loss";
  }
}

}  // namespace

ProbeImpl::ProbeImpl(const LayerCase& layer_case)
    : forward_(layer_case.forward) {
  layer = register_module("layer", layer_case.make());
  head = register_module("head", nn::Linear(4, 3));
  scale = register_parameter("scale", torch::full({1}, kInitialScale));
}

Tensor ProbeImpl::loss(Batch batch) {
  const Tensor mixed = mix(forward_(*layer, batch), 4);
  return (torch::tanh(head(mixed)) * scale).pow(2).mean() + mixed.mean();
}

void ProbeImpl::reset_parameters() {
  torch::NoGradGuard no_grad;
  scale.fill_(kInitialScale);
}

Probe make_probe(const LayerCase& layer_case) {
  const std::lock_guard lock(generator_mutex());
  torch::manual_seed(1);
  return Probe(layer_case);
}

Probe make_probe_on_meta(const LayerCase& layer_case) {
  const std::lock_guard lock(generator_mutex());
  return on_meta([&] { return Probe(layer_case); });
}

std::string name_of(Nesting nesting) {
  switch (nesting) {
    case Nesting::one_unit:
      return "everything in one unit";
    case Nesting::layer_in_root:
      return "the layer a unit inside the root";
    case Nesting::unit_per_module:
      return "every module a unit";
  }
  return "";
}

std::vector<Nesting> nestings_of(const LayerCase& layer_case) {
  std::vector<Nesting> nestings = {Nesting::one_unit, Nesting::layer_in_root};
  if (!make_probe(layer_case)->layer->children().empty()) {
    nestings.push_back(Nesting::unit_per_module);
  }
  return nestings;
}

void shard(Probe& probe, Nesting nesting, const DeviceMesh& mesh,
           const MixedPrecisionPolicy& policy) {
  const FullyShardOptions options{
      .mesh = mesh, .mp_policy = policy, .debug = Debug::poison_memory};
  if (nesting == Nesting::layer_in_root) fully_shard(*probe->layer, options);
  if (nesting == Nesting::unit_per_module) {
    auto modules = named_modules(*probe);
    std::reverse(modules.begin(), modules.end());  // children first
    for (const auto& [name, module] : modules) {
      const bool is_root = module == probe.get();
      if (is_root || module->parameters(/*recurse=*/false).empty()) continue;
      fully_shard(*module, options);
    }
  }
  fully_shard(*probe, options);
}

NamedTensors whole_weights(nn::Module& module) {
  FullParameters full(module, Write::discard);
  NamedTensors weights;
  for (const auto& item : module.named_parameters()) {
    weights.emplace_back(item.key(), item.value().detach().clone());
  }
  return weights;
}

Trained train_whole(const LayerCase& layer_case, int num_ranks) {
  Probe probe = make_probe(layer_case);
  auto optimizer = make_optimizer(*probe);
  const NamedTensors before = whole_weights(*probe);
  Trained trained;
  for (int step = 0; step < kSteps; ++step) {
    auto& losses = trained.losses.emplace_back();
    for (int rank = 0; rank < num_ranks; ++rank) {
      const Tensor loss = probe->loss({rank, step});
      losses.push_back(loss.item<double>());
      (loss / num_ranks).backward();
    }
    trained.with_gradient.push_back(names_with_gradient(*probe));
    optimizer.step();
    optimizer.zero_grad();
  }
  auto& last = trained.losses.emplace_back();
  for (int rank = 0; rank < num_ranks; ++rank) {
    last.push_back(evaluate(probe, {rank, kSteps}));
  }
  trained.weights = whole_weights(*probe);
  expect_moved(before, trained.weights, layer_case.may_rest);
  return trained;
}

void expect_trains_like(const Trained& whole, Probe& probe, int rank,
                        double tolerance) {
  auto optimizer = make_optimizer(*probe);
  for (int step = 0; step < kSteps; ++step) {
    const Tensor loss = probe->loss({rank, step});
    EXPECT_NEAR(loss.item<double>(), whole.losses[step][rank], tolerance)
        << "loss of rank " << rank << " at step " << step;
    loss.backward();
    EXPECT_EQ(names_with_gradient(*probe), whole.with_gradient[step])
        << "at step " << step;
    optimizer.step();
    optimizer.zero_grad();
  }
  EXPECT_NEAR(evaluate(probe, {rank, kSteps}), whole.losses[kSteps][rank],
              tolerance)
      << "loss of rank " << rank << " after the last step";
  expect_close(whole_weights(*probe), whole.weights, tolerance);
}

void expect_close(const NamedTensors& got, const NamedTensors& expected,
                  double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const auto& [name, value] = expected[i];
    ASSERT_EQ(got[i].first, name);
    ASSERT_EQ(got[i].second.sizes(), value.sizes()) << name;
    const double scale = std::max(1.0, value.abs().max().item<double>());
    const double apart = (got[i].second - value).abs().max().item<double>();
    EXPECT_LE(apart, tolerance * scale) << name;
  }
}

}  // namespace tessera::testing
