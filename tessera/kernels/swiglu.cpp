#include "tessera/kernels/swiglu.h"

#include <torch/csrc/autograd/custom_function.h>

#include "tessera/kernels/function_scope.h"
#include "tessera/kernels/operators.h"

namespace tessera {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Swiglu : torch::autograd::Function<Swiglu> {
  static Tensor forward(AutogradContext* context, const Tensor& gate,
                        const Tensor& up, bool records_graph) {
    const internal::ForwardScope scope(records_graph);
    context->save_for_backward({gate, up});
    return operators::swiglu(gate, up);
  }

  static variable_list backward(AutogradContext* context,
                                const variable_list& gradients) {
    const internal::BackwardScope scope("swiglu");
    const auto saved = context->get_saved_variables();
    auto [dgate, dup] =
        operators::swiglu_backward(gradients[0], saved[0], saved[1]);
    return {dgate, dup, {}};
  }
};

}  // namespace

Tensor swiglu(const Tensor& gate, const Tensor& up) {
  require<InvalidArgument>(
      gate.is_floating_point() && gate.sizes() == up.sizes() &&
          gate.scalar_type() == up.scalar_type(),
      [&] {
        return str("swiglu: got a gate of ", gate.sizes(), " (",
                   c10::toString(gate.scalar_type()), ") and an up of ",
                   up.sizes(), " (", c10::toString(up.scalar_type()),
                   "); give them one shape and floating dtype.");
      });
  return Swiglu::apply(gate, up, internal::records_graph());
}

}  // namespace tessera
