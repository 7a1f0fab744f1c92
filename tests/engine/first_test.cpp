#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/comm/communicator.h"
#include "tessera/comm/world.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/module/on_meta.h"
#include "tessera/shard/find_units.h"
#include "tessera/shard/fully_shard.h"
#include "tessera/tensor/spread.h"

namespace nn = torch::nn;
using torch::Tensor;

namespace tessera {
namespace {

struct BlockImpl : nn::Module {
  nn::Linear a{nullptr}, b{nullptr};
  nn::LayerNorm n{nullptr};
  explicit BlockImpl(int d) {
    a = register_module("a", nn::Linear(d, 4 * d));
    b = register_module("b", nn::Linear(4 * d, d));
    n = register_module("n", nn::LayerNorm(nn::LayerNormOptions({d})));
  }
  Tensor forward(Tensor x) { return x + b(torch::gelu(a(n(x)))); }
};
TORCH_MODULE(Block);

struct NetImpl : nn::Module {
  nn::Embedding e{nullptr};
  nn::ModuleList l;
  nn::LayerNorm n{nullptr};
  nn::Linear h{nullptr};
  NetImpl(int d, int v, int k) {
    e = register_module("e", nn::Embedding(v, d));
    l = register_module("l", nn::ModuleList());
    for (int i = 0; i < k; ++i) l->push_back(Block(d));
    n = register_module("n", nn::LayerNorm(nn::LayerNormOptions({d})));
    h = register_module("h", nn::Linear(nn::LinearOptions(d, v).bias(false)));
  }
  Tensor forward(Tensor x) {
    auto y = e(x);
    for (auto& b : *l) y = b->as<BlockImpl>()->forward(y);
    return h(n(y));
  }
};
TORCH_MODULE(Net);

std::mutex seed_mutex;

std::vector<double> train(const World* world, bool print) {
  Net net{nullptr};
  {
    std::lock_guard lock(seed_mutex);
    torch::manual_seed(1);
    net = Net(32, 51, 3);
  }
  const int W = world ? world->size() : 1, rank = world ? world->rank() : 0;
  if (world) {
    auto mesh = init_device_mesh(*world);
    FullyShardOptions o{.mesh = mesh, .debug = Debug::poison_memory};
    for (auto& b : *net->l) fully_shard(*b, o);
    fully_shard(*net, o);
  }
  torch::optim::AdamW opt(net->parameters(), torch::optim::AdamWOptions(1e-2));
  auto gen = at::detail::createCPUGenerator(7);
  std::vector<double> losses;
  for (int step = 0; step < 5; ++step) {
    Tensor x = torch::randint(51, {12, 16}, gen, torch::kLong);
    Tensor y = torch::randint(51, {12, 16}, gen, torch::kLong);
    const int per = 12 / W;
    x = x.narrow(0, rank * per, per);
    y = y.narrow(0, rank * per, per);
    Tensor loss =
        nn::functional::cross_entropy(net(x).reshape({-1, 51}), y.reshape(-1));
    loss.backward();
    Tensor mean = loss.detach().clone();
    if (world) {
      // losses of all ranks
      auto all = world->exchange("loss" + std::to_string(step),
                                 std::to_string(mean.item<double>()));
      double s = 0;
      for (auto& a : all) s += std::stod(a);
      losses.push_back(s / W);
    } else {
      losses.push_back(mean.item<double>());
    }
    opt.step();
    opt.zero_grad();
  }
  if (world && print) {
    for (auto& u : units_below(*net)) {
      EXPECT_EQ(u->counts().reduces, 5);
      EXPECT_EQ(u->counts().gathers, u->has_units_below() ? 5 : 10);
      EXPECT_FALSE(u->gathered());
    }
  }
  return losses;
}

TEST(Engine, TrainsLikeOneProcess) {
  at::set_num_threads(1);
  const auto base = train(nullptr, false);
  for (int W : {1, 2, 3, 4}) {
    run_ranks(W, [&](const World& world) {
      auto losses = train(&world, world.rank() == 0);
      for (size_t i = 0; i < base.size(); ++i) {
        EXPECT_NEAR(losses[i], base[i], 5e-6) << "W " << W << " step " << i;
      }
    });
  }
}

}  // namespace
}  // namespace tessera
