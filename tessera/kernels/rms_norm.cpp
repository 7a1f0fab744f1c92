#include "tessera/kernels/rms_norm.h"

#include <torch/csrc/autograd/custom_function.h>

#include "tessera/kernels/function_scope.h"
#include "tessera/kernels/operators.h"

namespace tessera {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void check(const char* function, const Tensor& x, const Tensor& weight) {
  require<InvalidArgument>(
      x.is_floating_point() && x.dim() >= 1 && weight.dim() == 1 &&
          x.size(-1) == weight.size(0) && weight.size(0) > 0,
      [&] {
        return str(function, ": got x of ", x.sizes(), " (",
                   c10::toString(x.scalar_type()), ") and a weight of ",
                   weight.sizes(),
                   "; expected floating x of [..., D] and a weight of [D].");
      });
}

std::optional<Tensor> optional(const Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static Tensor forward(AutogradContext* context, const Tensor& x,
                        const Tensor& weight, double eps, bool records_graph) {
    const internal::ForwardScope scope(records_graph);
    auto [y, rstd] = operators::rms_norm(x, weight, eps);
    context->save_for_backward({x, weight, rstd});
    return y;
  }

  static variable_list backward(AutogradContext* context,
                                const variable_list& gradients) {
    const internal::BackwardScope scope("rms_norm");
    const auto saved = context->get_saved_variables();
    auto [dx, dweight] = operators::rms_norm_backward(
        gradients[0], std::nullopt, saved[0], saved[1], saved[2]);
    return {dx, dweight, {}, {}};
  }
};

struct AddRmsNorm : torch::autograd::Function<AddRmsNorm> {
  static variable_list forward(AutogradContext* context, const Tensor& x,
                               const Tensor& residual, const Tensor& weight,
                               double eps, bool records_graph) {
    const internal::ForwardScope scope(records_graph);
    auto [sum, y, rstd] = operators::add_rms_norm(x, residual, weight, eps);
    context->save_for_backward({sum, weight, rstd});
    context->set_materialize_grads(false);
    return {sum, y};
  }

  static variable_list backward(AutogradContext* context,
                                const variable_list& gradients) {
    const internal::BackwardScope scope("add_rms_norm");
    const Tensor& dsum = gradients[0];
    if (!gradients[1].defined()) return {dsum, dsum, {}, {}, {}};
    const auto saved = context->get_saved_variables();
    auto [dx, dweight] = operators::rms_norm_backward(
        gradients[1], optional(dsum), saved[0], saved[1], saved[2]);
    return {dx, dx, dweight, {}, {}};
  }
};

}  // namespace

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  check("rms_norm", x, weight);
  return RmsNorm::apply(x, weight, eps, internal::records_graph());
}

SumAndNorm add_rms_norm(const Tensor& x, const Tensor& residual,
                        const Tensor& weight, double eps) {
  check("add_rms_norm", x, weight);
  require<InvalidArgument>(x.sizes() == residual.sizes() &&
                               x.scalar_type() == residual.scalar_type(),
                           [&] {
                             return str("add_rms_norm: got x of ", x.sizes(),
                                        " (", c10::toString(x.scalar_type()),
                                        ") and a residual of ",
                                        residual.sizes(), " (",
                                        c10::toString(residual.scalar_type()),
                                        "); give them one shape and dtype.");
                           });
  const auto both =
      AddRmsNorm::apply(x, residual, weight, eps, internal::records_graph());
  return {both[0], both[1]};
}

}  // namespace tessera
