// GradScaler over parameters that lie on several sets of ranks.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/optim/grad_scaler.h"
#include "tests/optim/test_shards.h"

namespace tessera {
namespace {

/// Shards over pairs of ranks, shards over all, and a plain parameter.
struct Mixture {
  Mixture(const World& world, bool all_first)
      : pair({torch::ones({6, 2})},
             cut(world, "pair",
                 {world.rank() / 2 * 2, world.rank() / 2 * 2 + 1})),
        all({torch::ones({9, 2})}, cut(world, "all", {0, 1, 2, 3})),
        plain(torch::ones({3}).set_requires_grad(true)) {
    list = {pair.shards()[0], all.shards()[0], plain};
    if (all_first) std::swap(list[0], list[1]);
    pair.set_gradients({torch::ones({6, 2})});
    all.set_gradients({torch::ones({9, 2})});
    plain.mutable_grad() = torch::ones({3});
  }
  static testing::Cut cut(const World& world, const std::string& name,
                          const std::vector<int>& ranks) {
    const auto own = std::find(ranks.begin(), ranks.end(), world.rank());
    return {static_cast<int>(own - ranks.begin()),
            static_cast<int>(ranks.size()),
            world.make_communicator(str(name, ranks[0], "-", world.next_id()),
                                    ranks)};
  }

  testing::TestShards pair, all;
  at::Tensor plain;
  std::vector<at::Tensor> list;
};

TEST(GradScalerOverRanks, WhatOneSetOfRanksFindsAllSetsKnow) {
  run_ranks(4, [](const World& world) {
    for (const bool all_first : {false, true}) {
      for (const char* where : {"pair", "all", "plain", "nowhere"}) {
        Mixture model(world, all_first);
        if (world.rank() == 2) {
          const std::string at = where;
          if (at == "pair") local(model.pair.shards()[0].grad()).fill_(NAN);
          if (at == "all") local(model.all.shards()[0].grad()).fill_(NAN);
          if (at == "plain")
            model.plain.mutable_grad().fill_(
                std::numeric_limits<double>::infinity());
        }
        torch::optim::SGD optimizer(model.list, 0.1);
        GradScaler scaler({.init_scale = 2});
        (void)scaler.scale(torch::ones({}));
        EXPECT_EQ(scaler.step(optimizer), std::string(where) == "nowhere")
            << where << " on rank " << world.rank();
        scaler.update();
        EXPECT_EQ(scaler.get_scale(), std::string(where) == "nowhere" ? 2 : 1);
      }
    }
  });
}

}  // namespace
}  // namespace tessera
