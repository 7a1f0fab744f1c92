#include <c10/cuda/CUDAFunctions.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "tessera/kernels/cross_entropy.h"
#include "tessera/kernels/operators.h"
#include "tessera/kernels/rms_norm.h"
#include "tessera/kernels/rope.h"
#include "tessera/kernels/swiglu.h"
#include "tessera/kernels/two_norm.h"
#include "tests/device/kernels/checks.h"

namespace device_kernels {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

// Sizes of the 1b model: two sequences of 4096 tokens.
constexpr int64_t kTokens = 8192;
constexpr int64_t kDim = 2048;
constexpr int64_t kFfn = 8192;
constexpr int64_t kVocab = 32000;
constexpr int64_t kHeads = 32;
constexpr double kBytes = 2;  // bfloat16

double milliseconds(const std::function<void()>& work) {
  constexpr int kRuns = 20;
  for (int i = 0; i < 3; ++i) work();
  c10::cuda::device_synchronize();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kRuns; ++i) work();
  c10::cuda::device_synchronize();
  const std::chrono::duration<double, std::milli> time =
      std::chrono::steady_clock::now() - start;
  return time.count() / kRuns;
}

Tensor random(at::IntArrayRef sizes) {
  return torch::randn(sizes,
                      torch::dtype(torch::kBFloat16).device(torch::kCUDA));
}

/// One kernel; `bytes` is what must be read and written.
void kernel(const char* name, double bytes, const std::function<void()>& work) {
  const torch::NoGradGuard no_grad;
  const double time = milliseconds(work);
  std::printf("kernel %s: %.3f ms, %.0f GB/s\n", name, time,
              bytes / time / 1e6);
}

/// Forward and backward, fused and of LibTorch's operators.
void pair(const char* name, const Tensors& inputs,
          const std::function<Tensor()>& fused,
          const std::function<Tensor()>& plain) {
  const auto both = [&](const std::function<Tensor()>& function) {
    const Tensor seed = torch::ones_like(function());
    return milliseconds(
        [&] { (void)torch::autograd::grad({function()}, inputs, {seed}); });
  };
  const double ours = both(fused);
  const double theirs = both(plain);
  std::printf(
      "forward and backward of %s: fused %.3f ms, plain %.3f ms, %.2f\n", name,
      ours, theirs, ours / theirs);
}

void measure_norms() {
  const Tensor x = random({kTokens, kDim}).requires_grad_();
  const Tensor branch = random({kTokens, kDim}).requires_grad_();
  const Tensor weight = random({kDim}).requires_grad_();
  const double one = kTokens * kDim * kBytes;
  using namespace tessera::operators;
  const auto [y, rstd] = rms_norm(x.detach(), weight.detach(), 1e-5);
  kernel("rms_norm", 2 * one, [&] { (void)rms_norm(x, weight, 1e-5); });
  kernel("add_rms_norm", 4 * one,
         [&] { (void)add_rms_norm(branch, x, weight, 1e-5); });
  kernel("rms_norm_backward", 3 * one, [&, &rstd = rstd, &y = y] {
    (void)rms_norm_backward(y, std::nullopt, x, weight, rstd);
  });
  kernel("rms_norm_backward with a sum", 4 * one, [&, &rstd = rstd, &y = y] {
    (void)rms_norm_backward(y, x.detach(), x, weight, rstd);
  });
  pair(
      "rms_norm", {x, weight},
      [&] { return tessera::rms_norm(x, weight, 1e-5); },
      [&] { return torch::rms_norm(x, {kDim}, weight, 1e-5); });
  pair(
      "residual add and norm, both used", {x, branch, weight},
      [&] {
        const auto [sum, norm] = tessera::add_rms_norm(branch, x, weight, 1e-5);
        return sum + norm;
      },
      [&] {
        const Tensor sum = x + branch;
        return sum + torch::rms_norm(sum, {kDim}, weight, 1e-5);
      });
}

/// Of the gradients of a block of 1b on two ranks.
void measure_two_norm() {
  const std::vector<Tensor> floats = {
      torch::randn({30 << 20}, torch::device(torch::kCUDA))};
  const double bytes = static_cast<double>(floats[0].numel()) * 4;
  kernel("2-norm", bytes,
         [&] { (void)tessera::two_norms_in_one_pass(floats); });
  kernel("2-norm of LibTorch", bytes,
         [&] { (void)at::_foreach_norm(floats, 2); });
}

void measure_rope() {
  const int64_t width = kDim / kHeads;
  const Tensor flat = random({2, kTokens / 2, kDim}).requires_grad_();
  const Tensor cos = random({kTokens / 2, width});
  const Tensor sin = random({kTokens / 2, width});
  const auto heads = [&] {
    return flat.view({2, kTokens / 2, kHeads, width}).transpose(1, 2);
  };
  const Tensor x = heads().detach();
  kernel("rope", 2 * kTokens * kDim * kBytes,
         [&] { (void)tessera::operators::rope(x, cos, sin); });
  pair(
      "rope", {flat}, [&] { return tessera::rope(heads(), cos, sin); },
      [&] {
        const Tensor q = heads();
        const auto halves = q.chunk(2, -1);
        return q * cos + torch::cat({-halves[1], halves[0]}, -1) * sin;
      });
}

void measure_swiglu() {
  const Tensor gate = random({kTokens, kFfn}).requires_grad_();
  const Tensor up = random({kTokens, kFfn}).requires_grad_();
  const double one = kTokens * kFfn * kBytes;
  const Tensor dy = random({kTokens, kFfn});
  kernel("swiglu", 3 * one,
         [&] { (void)tessera::operators::swiglu(gate, up); });
  kernel("swiglu_backward", 5 * one,
         [&] { (void)tessera::operators::swiglu_backward(dy, gate, up); });
  pair(
      "swiglu", {gate, up}, [&] { return tessera::swiglu(gate, up); },
      [&] { return torch::silu(gate) * up; });
}

void measure_cross_entropy() {
  const Tensor logits = random({kTokens, kVocab}).requires_grad_();
  const Tensor targets = torch::randint(
      kVocab, {kTokens}, torch::dtype(torch::kLong).device(torch::kCUDA));
  const auto plain_loss = [&](const Tensor& rows) {
    return torch::cross_entropy_loss(rows.to(torch::kFloat), targets, {},
                                     at::Reduction::Sum);
  };
  Tensor gradient = torch::empty_like(logits.detach());
  kernel("cross_entropy with gradient", 2 * kTokens * kVocab * kBytes, [&] {
    (void)tessera::operators::cross_entropy_gradient(logits, targets, -100,
                                                     gradient);
  });
  gradient = Tensor();
  pair(
      "cross_entropy", {logits},
      [&] { return tessera::cross_entropy(logits, targets); },
      [&] { return plain_loss(logits); });
  const Tensor hidden = random({kTokens, kDim}).requires_grad_();
  const Tensor head = random({kVocab, kDim}).requires_grad_();
  pair(
      "linear and cross_entropy", {hidden, head},
      [&] { return tessera::linear_cross_entropy(hidden, head, targets); },
      [&] { return plain_loss(torch::linear(hidden, head)); });
}

}  // namespace

void measure_speed() {
  measure_norms();
  measure_two_norm();
  measure_rope();
  measure_swiglu();
  measure_cross_entropy();
}

}  // namespace device_kernels
