#include "tests/device/graph/around.h"

#include <ATen/cuda/CUDAGraph.h>
#include <ATen/cuda/Sleep.h>
#include <torch/torch.h>

#include <cstdio>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/comm/world.h"
#include "tessera/device/stream.h"
#include "tessera/graph/graphed_step.h"
#include "tessera/shard/full_parameters.h"
#include "tessera/shard/fully_shard.h"

namespace tessera {

namespace {

using torch::Tensor;

constexpr int64_t kDim = 96;
constexpr int64_t kSleep = 200'000'000;  // cycles, a tenth of a second

/// A linear layer, sharded, with a step that a graph repeats.
class Steps {
 public:
  explicit Steps(const DeviceMesh& mesh) : mesh_(mesh), model_(make(mesh)) {}

  Tensor run(int step) {
    const Tensor input =
        torch::full({8, kDim}, 0.1 * (1 + step) * (1 + mesh_.world().rank()));
    return graphed_({input})[0];
  }
  void drop() { graphed_.capture_again(); }
  [[nodiscard]] bool captured() const { return graphed_.captured(); }
  [[nodiscard]] Tensor weight() {
    const FullParameters whole(*model_, Write::discard);
    return model_->weight.detach().clone();
  }

 private:
  static torch::nn::Linear make(const DeviceMesh& mesh) {
    torch::manual_seed(3);
    torch::nn::Linear model(kDim, kDim);
    model->to(mesh.device());
    fully_shard(*model, {.mesh = mesh});
    return model;
  }

  TensorVector body(const Tensor& input) {
    const Tensor loss = model_->forward(input).square().mean();
    loss.backward();
    // The host is far ahead of a replay that lasts.
    at::cuda::sleep(kSleep);
    optimizer_.step();
    optimizer_.zero_grad();
    return {loss.detach()};
  }

  const DeviceMesh mesh_;
  torch::nn::Linear model_;
  AdamW optimizer_{model_->parameters(), torch::optim::AdamWOptions(1e-2)};
  GraphedStep graphed_{*model_,
                       optimizer_,
                       mesh_,
                       [this](const TensorVector& in) { return body(in[0]); },
                       {.warmup = 1}};
};

bool said(const char* what, bool good) {
  std::printf("%s %s\n", good ? "ok" : "FAILED", what);
  return good;
}

}  // namespace

bool check_own_graph(const DeviceMesh& mesh) {
  const World& world = mesh.world();
  std::vector<int> ranks;
  for (int r = 0; r < world.size(); ++r) ranks.push_back(r);
  const auto communicator = world.make_communicator("test/own_graph", ranks);
  Steps steps(mesh);
  for (int i = 0; i < 4; ++i) (void)steps.run(i);
  bool good = steps.captured();

  const auto stream = make_stream(mesh.device(), StreamPriority::normal);
  const StreamScope scope(stream);
  const auto options = torch::device(mesh.device());
  Tensor part = torch::full({1009}, 1.0 + world.rank(), options);
  Tensor whole = torch::full({1009 * world.size()}, -1.0, options);
  const auto body = [&] {
    const std::vector<GatherCall> call = {{whole, part}};
    (void)communicator->all_gather(call, {.unit = "own"});
    (void)communicator->all_reduce(part, ReduceOp::sum, {.unit = "own"});
  };
  body();
  torch::cuda::synchronize();
  at::cuda::CUDAGraph graph;
  graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
  body();
  graph.capture_end();

  double before = world.size() * (world.size() + 1) / 2.0;
  for (int i = 0; i < 3; ++i) {
    whole.fill_(-1.0);
    graph.replay();
    (void)steps.run(4 + i);
    // Every rank has the same since the first sum.
    const double after = before * world.size();
    good = whole.eq(before).all().item<bool>() &&
           part.eq(after).all().item<bool>() && good;
    before = after;
  }
  return said("a user's own graph behind a GraphedStep", good);
}

bool check_drop_at_work(const DeviceMesh& mesh) {
  Steps kept(mesh);
  Steps dropped(mesh);
  bool good = true;
  for (int i = 0; i < 8; ++i) {
    const Tensor want = kept.run(i);
    const Tensor got = dropped.run(i);
    if (i == 3 || i == 5) dropped.drop();
    good = torch::equal(got, want) && good;
  }
  good = torch::equal(dropped.weight(), kept.weight()) && good;
  return said("a graph that is dropped at work", good && dropped.captured());
}

}  // namespace tessera
