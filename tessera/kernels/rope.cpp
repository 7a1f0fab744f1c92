#include "tessera/kernels/rope.h"

#include <torch/csrc/autograd/custom_function.h>

#include "tessera/kernels/function_scope.h"
#include "tessera/kernels/operators.h"

namespace tessera {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool is_table_of(const Tensor& table, const Tensor& x) {
  return table.dim() == 2 && table.is_floating_point() &&
         table.size(0) >= x.size(2) && table.size(1) == x.size(3) &&
         !table.requires_grad();
}

struct Rope : torch::autograd::Function<Rope> {
  static Tensor forward(AutogradContext* context, const Tensor& x,
                        const Tensor& cos, const Tensor& sin,
                        bool records_graph) {
    const internal::ForwardScope scope(records_graph);
    context->save_for_backward({cos, sin});
    return operators::rope(x, cos, sin);
  }

  static variable_list backward(AutogradContext* context,
                                const variable_list& gradients) {
    const internal::BackwardScope scope("rope");
    const auto saved = context->get_saved_variables();
    return {
        operators::rope_backward(gradients[0], saved[0], saved[1]), {}, {}, {}};
  }
};

}  // namespace

Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  require<InvalidArgument>(
      x.dim() == 4 && x.is_floating_point() && x.size(3) % 2 == 0 &&
          is_table_of(cos, x) && is_table_of(sin, x),
      [&] {
        return str("rope: got x of ", x.sizes(), ", cos of ", cos.sizes(),
                   " and sin of ", sin.sizes(),
                   "; expected x of [B, H, N, D] with an even D, and floating "
                   "tables of [N or more, D] without gradients.");
      });
  const int64_t positions = x.size(2);
  return Rope::apply(x, cos.narrow(0, 0, positions),
                     sin.narrow(0, 0, positions), internal::records_graph());
}

}  // namespace tessera
