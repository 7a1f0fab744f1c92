#include "tessera/kernels/linear_each.h"

#include <torch/csrc/autograd/custom_function.h>

#include "tessera/kernels/function_scope.h"
#include "tessera/kernels/operators.h"
#include "tessera/kernels/rows.h"

namespace tessera {

namespace {

using at::Tensor;
using internal::as_rows;
using internal::times_transposed;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// sum + dy * weight; sum may be undefined, and is written to.
Tensor add_product(Tensor sum, const Tensor& dy, const Tensor& weight) {
  if (!sum.defined()) return operators::product(dy, weight);
  operators::product_out(sum, dy, weight, /*beta=*/1);
  return sum;
}

/// x * weight^T, in the shape of x but for its last dim.
Tensor multiplied(const Tensor& x, const Tensor& weight) {
  auto sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  return times_transposed(as_rows(x), weight).view(sizes);
}

// Inputs are x, then the weights; saved in this order.
struct LinearEach : torch::autograd::Function<LinearEach> {
  static variable_list forward(AutogradContext* context, const Tensor& x,
                               at::TensorList weights, bool records_graph) {
    const internal::ForwardScope scope(records_graph);
    const Tensor input = x.to(weights.front().scalar_type());
    variable_list results;
    variable_list saved = {input};
    for (const Tensor& weight : weights) {
      results.push_back(multiplied(input, weight));
      saved.push_back(weight);
    }
    context->save_for_backward(saved);
    context->set_materialize_grads(false);
    return results;
  }

  static variable_list backward(AutogradContext* context,
                                const variable_list& gradients) {
    const internal::BackwardScope scope("linear_each");
    const auto saved = context->get_saved_variables();
    const Tensor& x = saved[0];
    Tensor dx;
    variable_list results = {Tensor()};
    for (size_t i = 0; i < gradients.size(); ++i) {
      results.emplace_back();
      if (!gradients[i].defined()) continue;
      const Tensor dy = as_rows(gradients[i]);
      const Tensor& weight = saved[i + 1];
      if (context->needs_input_grad(0)) dx = add_product(dx, dy, weight);
      if (context->needs_input_grad(i + 1)) {
        results.back() = operators::product(dy.t(), as_rows(x));
      }
    }
    if (dx.defined()) results[0] = dx.view(x.sizes());
    results.emplace_back();
    return results;
  }
};

bool fit(const Tensor& x, const Tensor& weight, const Tensor& first) {
  return weight.dim() == 2 && weight.size(1) == x.size(-1) &&
         weight.scalar_type() == first.scalar_type();
}

}  // namespace

std::vector<Tensor> linear_each(const Tensor& x,
                                const std::vector<Tensor>& weights) {
  require<InvalidArgument>(
      !weights.empty() && x.is_floating_point() && x.dim() >= 1, [&] {
        return str("linear_each: got ", weights.size(), " weights and x of ",
                   x.sizes(), " (", c10::toString(x.scalar_type()),
                   "); give a floating x of [..., D] and one weight or more.");
      });
  for (const Tensor& weight : weights) {
    require<InvalidArgument>(fit(x, weight, weights.front()), [&] {
      return str("linear_each: got a weight of ", weight.sizes(), " (",
                 c10::toString(weight.scalar_type()), ") for x of ", x.sizes(),
                 "; expected [D_i, ", x.size(-1), "] in the dtype of all (",
                 c10::toString(weights.front().scalar_type()), ").");
    });
  }
  return LinearEach::apply(x, at::TensorList(weights),
                           internal::records_graph());
}

}  // namespace tessera
