#include "tessera/kernels/adamw.h"

#include <torch/torch.h>

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "tests/device/kernels/checks.h"

namespace device_kernels {
namespace {

using torch::Tensor;

const auto kFloats = torch::dtype(torch::kFloat).device(torch::kCUDA);

struct State {
  Tensor parameter, gradient, exp_avg, exp_avg_sq, most, step;

  [[nodiscard]] State clone() const {
    return {parameter.clone(),  gradient.clone(), exp_avg.clone(),
            exp_avg_sq.clone(), most.clone(),     step.clone()};
  }
  [[nodiscard]] std::vector<Tensor> written() const {
    return {parameter, exp_avg, exp_avg_sq, most};
  }
};

State random_state(int64_t numel) {
  return {torch::randn({numel}, kFloats),       torch::randn({numel}, kFloats),
          torch::randn({numel}, kFloats) * 0.1, torch::rand({numel}, kFloats),
          torch::rand({numel}, kFloats),        torch::full({}, 3.0, kFloats)};
}

struct Kind {
  bool amsgrad = false, clipped = false, skipped = false;
  std::optional<torch::Dtype> copy = {};
};

Tensor rate() { return torch::full({}, 0.01, kFloats); }

/// LibTorch's kernel, with a pass for the factor and one for the copy.
void update_in_passes(State& state, const Kind& kind, const Tensor& factor,
                      const Tensor& skip) {
  if (kind.clipped) state.gradient.mul_(factor);
  std::vector<Tensor> parameters = {state.parameter}, steps = {state.step},
                      gradients = {state.gradient}, means = {state.exp_avg},
                      squares = {state.exp_avg_sq}, most;
  if (kind.amsgrad) most = {state.most};
  at::_fused_adamw_(parameters, gradients, means, squares, most, steps, rate(),
                    0.9, 0.95, 0.1, 1e-8, kind.amsgrad, false, {},
                    kind.skipped ? std::optional(skip) : std::nullopt);
}

/// Of the largest difference; the same arithmetic, in float instead of double.
bool alike(const std::vector<Tensor>& got, const std::vector<Tensor>& want) {
  for (size_t i = 0; i < got.size(); ++i) {
    if (!got[i].allclose(want[i], 2e-6, 2e-6)) return false;
  }
  return true;
}

bool check(int64_t numel, int64_t offset, const Kind& kind) {
  const State whole = random_state(numel + offset);
  State want = whole.clone(), got = whole.clone();
  const auto part = [&](const Tensor& t) { return t.narrow(0, offset, numel); };
  for (State* state : {&want, &got}) {
    for (Tensor* t : {&state->parameter, &state->gradient, &state->exp_avg,
                      &state->exp_avg_sq, &state->most}) {
      *t = part(*t);
    }
  }
  const Tensor factor = torch::full({}, 0.3, kFloats);
  const Tensor skip = torch::ones({}, kFloats);
  Tensor copy;
  if (kind.copy) copy = got.parameter.to(*kind.copy);
  update_in_passes(want, kind, factor, skip);
  const bool done = tessera::adamw_in_one_pass(
      {.parameter = got.parameter,
       .gradient = got.gradient,
       .exp_avg = got.exp_avg,
       .exp_avg_sq = got.exp_avg_sq,
       .max_exp_avg_sq = kind.amsgrad ? got.most : Tensor(),
       .copy = copy,
       .step = got.step,
       .rate = rate(),
       .skip = kind.skipped ? skip : Tensor(),
       .factor = kind.clipped ? factor : Tensor()},
      {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1});
  const bool moved = !got.parameter.equal(part(whole.parameter)) || numel == 0;
  return done && moved != kind.skipped &&
         alike(got.written(), want.written()) &&
         (!kind.copy || copy.equal(got.parameter.to(*kind.copy)));
}

/// A matrix that lies column by column, as a shard of another dim does.
bool check_columns() {
  State want = random_state(6 * 8), got = want.clone();
  for (State* state : {&want, &got}) {
    for (Tensor* t : {&state->parameter, &state->gradient, &state->exp_avg,
                      &state->exp_avg_sq, &state->most}) {
      *t = t->view({6, 8}).t();
    }
  }
  update_in_passes(want, {}, {}, {});
  const bool done = tessera::adamw_in_one_pass(
      {.parameter = got.parameter,
       .gradient = got.gradient,
       .exp_avg = got.exp_avg,
       .exp_avg_sq = got.exp_avg_sq,
       .max_exp_avg_sq = {},
       .copy = {},
       .step = got.step,
       .rate = rate(),
       .skip = {},
       .factor = {}},
      {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1});
  const bool good = done && alike(got.written(), want.written());
  std::printf("%s adamw, column by column\n", good ? "PASS" : "FAIL");
  return good;
}

}  // namespace

int check_adamw() {
  torch::manual_seed(3);
  const std::vector<Kind> kinds = {
      {},
      {.amsgrad = true},
      {.clipped = true},
      {.skipped = true, .copy = torch::kBFloat16},
      {.copy = torch::kBFloat16},
      {.amsgrad = true, .clipped = true, .copy = torch::kHalf}};
  int failures = check_columns() ? 0 : 1;
  for (size_t i = 0; i < kinds.size(); ++i) {
    for (const int64_t numel : {1, 3, 4, 7, 1000, 4099, 1 << 20}) {
      for (const int64_t offset : {0, 1, 4}) {
        const bool good = check(numel, offset, kinds[i]);
        failures += good ? 0 : 1;
        std::printf("%s adamw, kind %zu, %ld elements from %ld\n",
                    good ? "PASS" : "FAIL", i, static_cast<long>(numel),
                    static_cast<long>(offset));
      }
    }
  }
  return failures;
}

}  // namespace device_kernels
