#include "tessera/train/second_half.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <optional>
#include <utility>

#include "tessera/kernels/function_scope.h"
#include "tessera/kernels/operators.h"
#include "tessera/kernels/rows.h"

namespace tessera::train {

namespace {

using at::Tensor;
using internal::as_rows;
using internal::times_transposed;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Of `apply`; gradients come in this order.
enum Input : uint8_t { kResidual, kMixed, kOutput, kNorm, kGate, kUp, kDown };
constexpr size_t kInputs = 11;  // with those that have no gradient

/// The sum of the residual stream, row by row, and its norm.
struct Normed {
  Tensor sum, norm, rstd;
};

Normed add_and_norm(const Tensor& residual, const Tensor& mixed,
                    const SecondHalfWeights& weights, double eps) {
  auto [sum, norm, rstd] = operators::add_rms_norm(
      times_transposed(mixed, weights.output), residual, weights.norm, eps);
  return {sum, norm, rstd};
}

/// What backward works on: its own, to be written over.
struct Values {
  Normed x;
  Tensor gate, up;
};

Values widen(Normed x, const SecondHalfWeights& weights) {
  Tensor gate = times_transposed(x.norm, weights.gate);
  Tensor up = times_transposed(x.norm, weights.up);
  return {std::move(x), std::move(gate), std::move(up)};
}

SecondHalfWeights weights_of(const variable_list& saved) {
  return {saved[kOutput], saved[kNorm], saved[kGate], saved[kUp], saved[kDown]};
}

/// The gradients behind the norm: of the weights of gate, up and down, and of
/// the norm.
class GatedBackward {
 public:
  GatedBackward(const AutogradContext& context,
                const SecondHalfWeights& weights)
      : context_(context), weights_(weights) {}

  /// Returns the norm's, and takes the memory of `values`.
  Tensor run(const Tensor& dy, Values& values, variable_list& results) const {
    Tensor inner = operators::product(dy, weights_.down);
    operators::swiglu_backward_in_place(inner, values.gate, values.up);
    if (wants(kDown)) results[kDown] = operators::product(dy.t(), inner);
    inner.reset();
    const Tensor dgate = std::move(values.gate);
    const Tensor dup = std::move(values.up);
    const Tensor& norm = values.x.norm;
    if (wants(kGate)) results[kGate] = operators::product(dgate.t(), norm);
    if (wants(kUp)) results[kUp] = operators::product(dup.t(), norm);
    Tensor dnorm = operators::product(dgate, weights_.gate);
    operators::product_out(dnorm, dup, weights_.up, /*beta=*/1);
    return dnorm;
  }

 private:
  [[nodiscard]] bool wants(Input input) const {
    return context_.needs_input_grad(input);
  }

  const AutogradContext& context_;
  const SecondHalfWeights& weights_;
};

struct SecondHalf : torch::autograd::Function<SecondHalf> {
  static variable_list forward(AutogradContext* context, const Tensor& residual,
                               const Tensor& mixed, const Tensor& output,
                               const Tensor& norm, const Tensor& gate,
                               const Tensor& up, const Tensor& down, double eps,
                               SecondHalfKeeps keeps, variable_list* kept,
                               bool records_graph) {
    const internal::ForwardScope scope(records_graph);
    const SecondHalfWeights weights{output, norm, gate, up, down};
    const Values values = widen(
        add_and_norm(as_rows(residual), as_rows(mixed), weights, eps), weights);
    const Tensor branch = times_transposed(
        operators::swiglu(values.gate, values.up), weights.down);
    const Tensor sum = values.x.sum.view(residual.sizes());
    variable_list saved = {residual, mixed, output, norm, gate, up, down};
    if (keeps == SecondHalfKeeps::sum_gate_and_up) {
      saved[kResidual].reset();
      // The result itself, so that a change of it in place is noticed.
      saved.insert(saved.end(), {sum, values.x.rstd, values.gate, values.up});
      *kept = {values.gate, values.up};
    }
    context->save_for_backward(saved);
    context->saved_data["eps"] = eps;
    context->set_materialize_grads(false);
    return {sum, branch.view(residual.sizes())};
  }

  static variable_list backward(AutogradContext* context,
                                const variable_list& gradients) {
    const internal::BackwardScope scope("second_half");
    variable_list results(kInputs);
    const auto saved = context->get_saved_variables();
    const SecondHalfWeights weights = weights_of(saved);
    Tensor dsum = gradients[0];
    if (gradients[1].defined()) {
      dsum = behind_sum(*context, saved, weights, gradients, results);
    }
    if (!dsum.defined()) return results;
    const Tensor rows = as_rows(dsum);
    if (context->needs_input_grad(kMixed)) {
      results[kMixed] =
          operators::product(rows, weights.output).view(saved[kMixed].sizes());
    }
    if (context->needs_input_grad(kOutput)) {
      results[kOutput] = operators::product(rows.t(), as_rows(saved[kMixed]));
    }
    results[kResidual] = dsum;
    return results;
  }

 private:
  /// The gradient of the sum, with what came for the sum itself.
  static Tensor behind_sum(const AutogradContext& context,
                           const variable_list& saved,
                           const SecondHalfWeights& weights,
                           const variable_list& gradients,
                           variable_list& results) {
    const double eps = context.saved_data.at("eps").toDouble();
    Values values = values_of(saved, weights, eps);
    const Tensor dnorm = GatedBackward(context, weights)
                             .run(as_rows(gradients[1]), values, results);
    const auto earlier = gradients[0].defined()
                             ? std::optional(as_rows(gradients[0]))
                             : std::nullopt;
    auto [dsum, dweight] = operators::rms_norm_backward(
        dnorm, earlier, values.x.sum, weights.norm, values.x.rstd);
    if (context.needs_input_grad(kNorm)) results[kNorm] = dweight;
    return dsum.view(gradients[1].sizes());
  }

  static Values values_of(const variable_list& saved,
                          const SecondHalfWeights& weights, double eps) {
    if (saved.size() == kDown + 1) {
      return widen(add_and_norm(as_rows(saved[kResidual]),
                                as_rows(saved[kMixed]), weights, eps),
                   weights);
    }
    const auto kept = [&](size_t i) { return saved[kDown + 1 + i]; };
    const Tensor sum = as_rows(kept(0));
    auto [norm, rstd] = operators::rms_norm(sum, weights.norm, eps);
    Values values{{sum, norm, kept(1)}, kept(2), kept(3)};
    if (torch::autograd::get_current_graph_task_keep_graph()) {
      // Another backward will read them.
      values.gate = values.gate.clone();
      values.up = values.up.clone();
    }
    return values;
  }
};

}  // namespace

SumAndBranch second_half(const Tensor& residual, const Tensor& mixed,
                         const SecondHalfWeights& weights, double eps,
                         SecondHalfKeeps keeps) {
  variable_list kept;
  const auto both = SecondHalf::apply(
      residual, mixed, weights.output, weights.norm, weights.gate, weights.up,
      weights.down, eps, keeps, &kept, internal::records_graph());
  return {both[0], both[1], std::move(kept)};
}

}  // namespace tessera::train
