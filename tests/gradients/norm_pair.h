// The same model twice: one takes its norms in backward, one when it is over.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>

#include "tessera/optim/clip_grad_norm.h"
#include "tests/support/net.h"

namespace tessera::test {

inline Tensor output_of(nn::Module& model, int rank, int step) {
  return as_net(model).forward(input(rank, step).to(torch::kFloat));
}

inline Tensor shard_of(const nn::Module& model, const std::string& name) {
  return model.named_parameters()[name];
}

using Change = std::function<void(nn::Module&)>;

/// The same model twice: one takes its norms in backward.
struct Pair {
  Model early = build(make_net), late = build(make_net);

  explicit Pair(const FullyShardOptions& options) {
    for (const Model& model : {early, late}) shard(*model, options, kUnits);
    set_norm_in_backward(*early, NormInBackward::on);
  }

  void both(const Change& change) const {
    change(*early);
    change(*late);
  }
  void backward(int rank, int step = 0) const {
    both([&](nn::Module& model) {
      output_of(model, rank, step).pow(2).sum().backward();
    });
  }
};

inline FullyShardOptions plain_options(const World& world) {
  return options_for(init_device_mesh(world));
}

inline Tensor norm_of(const Model& model) {
  return get_total_norm(model->parameters());
}

inline void expect_equal_norms(const Pair& pair, const std::string& what) {
  const Tensor early = norm_of(pair.early), late = norm_of(pair.late);
  EXPECT_GT(late.item<double>(), 0) << what;
  EXPECT_TRUE(early.equal(late)) << what << ": " << early << late;
}

/// Behind the back of the gate and of version counters.
inline void write_through_pointers(nn::Module& model) {
  for (const Tensor& p : model.parameters()) {
    if (!p.grad().defined()) continue;
    const Tensor grad = local(p.grad());
    auto* bytes = static_cast<std::byte*>(grad.mutable_data_ptr());
    std::fill_n(bytes, grad.nbytes(), std::byte{0});
  }
}

/// Whether the norm is one that backward has kept.
inline bool is_kept(const Model& model) {
  const Tensor before = norm_of(model);
  write_through_pointers(*model);
  return norm_of(model).equal(before) && before.item<double>() > 0;
}

}  // namespace tessera::test
