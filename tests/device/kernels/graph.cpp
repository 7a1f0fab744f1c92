#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/torch.h>

#include <cstdio>
#include <vector>

#include "tessera/kernels/cross_entropy.h"
#include "tessera/kernels/rms_norm.h"
#include "tessera/kernels/rope.h"
#include "tessera/kernels/swiglu.h"
#include "tests/device/kernels/checks.h"

namespace device_kernels {
namespace {

using torch::Tensor;

/// One layer of everything; results are the loss and all gradients.
struct Layer {
  Layer() {
    torch::manual_seed(2);
    const auto options = torch::dtype(torch::kBFloat16).device(torch::kCUDA);
    x = torch::randn({2, 64, 4 * 32}, options).requires_grad_();
    scale = torch::ones({128}, options).requires_grad_();
    head = (torch::randn({1000, 128}, options) * 0.1).detach().requires_grad_();
    cos = torch::randn({64, 32}, options);
    sin = torch::randn({64, 32}, options);
    targets = torch::randint(1000, {2, 64},
                             torch::dtype(torch::kLong).device(torch::kCUDA));
  }

  [[nodiscard]] std::vector<Tensor> run() const {
    const Tensor normed = tessera::rms_norm(x, scale, 1e-5);
    const Tensor turned =
        tessera::rope(normed.view({2, 64, 4, 32}).transpose(1, 2), cos, sin)
            .transpose(1, 2)
            .flatten(2);
    const auto [sum, norm] = tessera::add_rms_norm(turned, x, scale, 1e-5);
    const Tensor loss = tessera::linear_cross_entropy(
        tessera::swiglu(sum, norm), head, targets, {.tokens_at_once = 50});
    auto results = torch::autograd::grad({loss}, {x, scale, head});
    results.push_back(loss.detach());
    return results;
  }

  Tensor x, scale, head, cos, sin, targets;
};

int count_unlike(const char* what, const std::vector<Tensor>& got,
                 const std::vector<Tensor>& want) {
  int unlike = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (!torch::equal(got[i], want[i])) ++unlike;
  }
  std::printf("%s %s: %d of %zu results differ\n", unlike ? "FAIL" : "PASS",
              what, unlike, got.size());
  return unlike;
}

}  // namespace

int check_graph() {
  const Layer layer;
  const c10::cuda::CUDAStreamGuard side(c10::cuda::getStreamFromPool());
  const auto first = layer.run();
  int failures = count_unlike("a second run, bit for bit", layer.run(), first);
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  const auto captured = layer.run();
  graph.capture_end();
  for (const Tensor& tensor : captured) tensor.fill_(0);
  graph.replay();
  failures += count_unlike("a replayed graph, bit for bit", captured, first);
  return failures;
}

}  // namespace device_kernels
