#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/kernels/cross_entropy.h"
#include "tessera/kernels/rms_norm.h"
#include "tessera/kernels/rope.h"
#include "tessera/kernels/swiglu.h"
#include "tests/device/kernels/checks.h"

namespace device_kernels {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;
using Function = std::function<Tensors(const Tensors&)>;

// Of the largest difference to what double gives, relative to the value, the
// root mean square of all and a hundredth (inputs are near 1, and so are what
// cancels in small results): one rounding to the dtype, and the float sums.
double tolerance(torch::Dtype dtype) {
  if (dtype == torch::kBFloat16) return 8e-3;
  if (dtype == torch::kHalf) return 1e-3;
  return 2e-5;
}

double worst_difference(const Tensor& got, const Tensor& expected) {
  if (got.numel() == 0) return 0;
  const Tensor want = expected.to(torch::kDouble);
  const Tensor difference = (got.to(torch::kDouble) - want).abs();
  const Tensor size = want.abs() + want.square().mean().sqrt() + 0.01;
  const double worst = (difference / size).max().item<double>();
  return std::isfinite(worst) ? worst : INFINITY;
}

Tensors as_leaves(const Tensors& inputs, torch::Dtype dtype) {
  Tensors leaves;
  for (const Tensor& input : inputs) {
    // Keeps strides; the leaf is what the function sees.
    leaves.push_back(input.to(dtype).detach().requires_grad_());
  }
  return leaves;
}

Tensors gradients_of(const Tensors& outputs, const Tensors& inputs,
                     const Tensors& seeds) {
  return torch::autograd::grad(outputs, inputs, seeds, false, false,
                               /*allow_unused=*/true);
}

class Agreement {
 public:
  void check(const std::string& name, const Tensors& inputs,
             const Function& function) {
    for (const auto dtype : {torch::kFloat32, torch::kBFloat16, torch::kHalf}) {
      try {
        check_dtype(name, inputs, function, dtype);
      } catch (const std::exception& error) {
        ++failures_;
        std::printf("FAIL %s %s: %s\n", name.c_str(), c10::toString(dtype),
                    error.what());
      }
    }
  }
  [[nodiscard]] int failures() const { return failures_; }

 private:
  void check_dtype(const std::string& name, const Tensors& inputs,
                   const Function& function, torch::Dtype dtype) {
    const Tensors low = as_leaves(inputs, dtype);
    const Tensors high = as_leaves(low, torch::kDouble);
    const Tensors got = function(low);
    const Tensors want = function(high);
    Tensors seeds;
    Tensors high_seeds;
    double worst = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      worst = std::max(worst, worst_difference(got[i], want[i]));
      seeds.push_back(torch::randn_like(got[i]));
      high_seeds.push_back(seeds.back().to(torch::kDouble));
    }
    const Tensors got_gradients = gradients_of(got, low, seeds);
    const Tensors want_gradients = gradients_of(want, high, high_seeds);
    double worst_gradient = 0;
    for (size_t i = 0; i < low.size(); ++i) {
      worst_gradient =
          std::max(worst_gradient,
                   worst_difference(got_gradients[i], want_gradients[i]));
    }
    const bool good =
        worst <= tolerance(dtype) && worst_gradient <= 2 * tolerance(dtype);
    if (!good) ++failures_;
    std::printf("%s %s %s: forward %.1e, backward %.1e\n",
                good ? "PASS" : "FAIL", name.c_str(), c10::toString(dtype),
                worst, worst_gradient);
  }

  int failures_ = 0;
};

const auto kOptions = torch::dtype(torch::kDouble).device(torch::kCUDA);

Tensor random(at::IntArrayRef sizes) { return torch::randn(sizes, kOptions); }

std::string named(const char* name, at::IntArrayRef sizes) {
  std::string text = name;
  for (const int64_t size : sizes)
    text.append(" ").append(std::to_string(size));
  return text;
}

void check_norms(Agreement& agreement) {
  const std::vector<std::pair<int64_t, int64_t>> sizes = {
      {1, 1},       {1, 8},     {3, 7},      {5, 96},    {2, 1000},
      {17, 768},    {257, 33},  {4096, 320}, {64, 4096}, {1000, 2048},
      {3, 12000},   {2, 12008}, {0, 64},     {7, 20000}, {5001, 1024},
      {3001, 3072}, {700, 5120}};
  for (const auto& [rows, dim] : sizes) {
    const Tensor weight = random({dim}) * 0.2 + 1;
    agreement.check(named("rms_norm", {rows, dim}),
                    {random({rows, dim}), weight}, [](const Tensors& in) {
                      return Tensors{tessera::rms_norm(in[0], in[1], 1e-5)};
                    });
    agreement.check(named("add_rms_norm", {rows, dim}),
                    {random({rows, dim}), random({rows, dim}), weight},
                    [](const Tensors& in) {
                      const auto [sum, norm] =
                          tessera::add_rms_norm(in[0], in[1], in[2], 1e-5);
                      return Tensors{sum, norm};
                    });
  }
  // Not aligned, and not contiguous.
  agreement.check(
      "rms_norm of a slice", {random({9, 129}), random({128})},
      [](const Tensors& in) {
        return Tensors{tessera::rms_norm(in[0].narrow(1, 1, 128), in[1], 1e-5)};
      });
}

void check_rope(Agreement& agreement) {
  const std::vector<std::array<int64_t, 4>> sizes = {
      {1, 1, 1, 2},  {2, 3, 5, 6},  {2, 12, 33, 64}, {1, 8, 100, 128},
      {3, 1, 7, 80}, {0, 4, 5, 16}, {2, 32, 257, 64}};
  for (const auto& [batch, heads, positions, width] : sizes) {
    const Tensor angles = random({positions + 3, width});
    for (const bool wide_table : {true, false}) {
      agreement.check(
          named(wide_table ? "rope, float table" : "rope",
                {batch, heads, positions, width}),
          {random({batch, positions, heads * width})},
          [&, heads = heads, width = width](const Tensors& in) {
            const auto dtype = in[0].scalar_type();
            const auto table =
                wide_table && dtype != torch::kDouble ? torch::kFloat : dtype;
            // What the low dtype rounds is part of the input.
            const auto shown = wide_table ? torch::kFloat : torch::kHalf;
            const Tensor x =
                in[0]
                    .view({in[0].size(0), in[0].size(1), heads, width})
                    .transpose(1, 2);
            const auto round = [&](const Tensor& t) {
              return t.to(shown).to(torch::kBFloat16).to(table);
            };
            return Tensors{
                tessera::rope(x, round(angles.cos()), round(angles.sin()))};
          });
    }
  }
  agreement.check(
      "rope, contiguous heads", {random({2, 4, 9, 32})}, [](const Tensors& in) {
        const Tensor angles =
            torch::ones({9, 32}, in[0].options().requires_grad(false));
        return Tensors{tessera::rope(in[0], angles, angles)};
      });
}

void check_swiglu(Agreement& agreement) {
  for (const int64_t numel : {0, 1, 7, 8, 1000, 4096, 100003}) {
    agreement.check(named("swiglu", {numel}),
                    {random({numel}) * 3, random({numel})},
                    [](const Tensors& in) {
                      return Tensors{tessera::swiglu(in[0], in[1])};
                    });
  }
  agreement.check("swiglu of halves", {random({33, 512})},
                  [](const Tensors& in) {
                    const auto halves = in[0].chunk(2, -1);
                    return Tensors{tessera::swiglu(halves[0], halves[1])};
                  });
}

Tensor some_targets(int64_t rows, int64_t vocab) {
  const Tensor targets = torch::randint(
      vocab, {rows}, torch::dtype(torch::kLong).device(torch::kCUDA));
  if (rows > 2) targets[1] = -100;
  return targets;
}

void check_cross_entropy(Agreement& agreement) {
  const std::vector<std::pair<int64_t, int64_t>> sizes = {
      {1, 1},      {3, 5},     {64, 256},   {33, 1000},
      {17, 32000}, {9, 50257}, {5, 128256}, {0, 16}};
  for (const auto& [rows, vocab] : sizes) {
    const Tensor targets = some_targets(rows, vocab);
    agreement.check(named("cross_entropy", {rows, vocab}),
                    {random({rows, vocab}) * 3}, [&](const Tensors& in) {
                      return Tensors{tessera::cross_entropy(in[0], targets)};
                    });
  }
}

void check_linear_cross_entropy(Agreement& agreement) {
  const std::vector<std::array<int64_t, 4>> sizes = {{1, 8, 16, 0},
                                                     {40, 64, 1000, 0},
                                                     {100, 64, 1000, 7},
                                                     {300, 96, 3201, 128}};
  for (const auto& [tokens, dim, vocab, at_once] : sizes) {
    const Tensor targets = some_targets(tokens, vocab);
    agreement.check(
        named("linear_cross_entropy", {tokens, dim, vocab, at_once}),
        {random({tokens, dim}), random({vocab, dim}) * 0.1},
        [&, at_once = at_once](const Tensors& in) {
          return Tensors{tessera::linear_cross_entropy(
              in[0], in[1], targets, {.tokens_at_once = at_once})};
        });
  }
}

}  // namespace

int check_agreement() {
  torch::manual_seed(1);
  Agreement agreement;
  check_norms(agreement);
  check_rope(agreement);
  check_swiglu(agreement);
  check_cross_entropy(agreement);
  check_linear_cross_entropy(agreement);
  return agreement.failures();
}

}  // namespace device_kernels
