#include "tessera/kernels/operators.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "tessera/kernels/aten_kernels.h"
#include "tessera/kernels/cuda_kernels.h"

namespace tessera::operators {

namespace {

using at::Tensor;

void define(torch::Library& library, const char* schema) {
  library.def(schema);
}

void define_all(torch::Library& library) {
  define(library,
         "rms_norm(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)");
  define(library,
         "add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps)"
         " -> (Tensor, Tensor, Tensor)");
  define(library,
         "rms_norm_backward(Tensor dy, Tensor? dsum, Tensor x, Tensor weight,"
         " Tensor rstd) -> (Tensor, Tensor)");
  define(library, "rope(Tensor x, Tensor cos, Tensor sin) -> Tensor");
  define(library, "rope_backward(Tensor dy, Tensor cos, Tensor sin) -> Tensor");
  define(library, "swiglu(Tensor gate, Tensor up) -> Tensor");
  define(library,
         "swiglu_backward(Tensor dy, Tensor gate, Tensor up)"
         " -> (Tensor, Tensor)");
  define(library,
         "swiglu_backward_in_place(Tensor(a!) dy, Tensor(b!) gate,"
         " Tensor(c!) up) -> ()");
  define(library,
         "product_out(Tensor(a!) out, Tensor a, Tensor b, float beta) -> ()");
  define(library,
         "cross_entropy(Tensor logits, Tensor targets, int ignore_index)"
         " -> Tensor");
  define(library,
         "cross_entropy_gradient(Tensor logits, Tensor targets,"
         " int ignore_index, Tensor(a!) gradient) -> Tensor");
}

template <class Function>
void implement(torch::Library& library, const char* name, Function function) {
  library.impl(
      name,
      torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, function));
}

void implement_all(torch::Library& library) {
  implement(library, "rms_norm", TORCH_FN(aten_kernels::rms_norm));
  implement(library, "add_rms_norm", TORCH_FN(aten_kernels::add_rms_norm));
  implement(library, "rms_norm_backward",
            TORCH_FN(aten_kernels::rms_norm_backward));
  implement(library, "rope", TORCH_FN(aten_kernels::rope));
  implement(library, "rope_backward", TORCH_FN(aten_kernels::rope_backward));
  implement(library, "swiglu", TORCH_FN(aten_kernels::swiglu));
  implement(library, "swiglu_backward",
            TORCH_FN(aten_kernels::swiglu_backward));
  implement(library, "swiglu_backward_in_place",
            TORCH_FN(aten_kernels::swiglu_backward_in_place));
  implement(library, "product_out", TORCH_FN(aten_kernels::product_out));
  implement(library, "cross_entropy", TORCH_FN(aten_kernels::cross_entropy));
  implement(library, "cross_entropy_gradient",
            TORCH_FN(aten_kernels::cross_entropy_gradient));
}

// On first use, not before main: a static build keeps it. Lives as long as the
// process, as tensors' graphs may.
void register_operators() {
  static torch::Library* const library = [] {
    auto* made = new torch::Library(torch::Library::DEF, "tessera",
                                    std::nullopt, __FILE__, __LINE__);
    define_all(*made);
    implement_all(*made);
    register_cuda_kernels(*made);
    return made;
  }();
  (void)library;
}

template <class Signature>
c10::TypedOperatorHandle<Signature> find(const char* name) {
  register_operators();
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(name, "")
      .typed<Signature>();
}

}  // namespace

std::tuple<Tensor, Tensor> rms_norm(const Tensor& x, const Tensor& weight,
                                    double eps) {
  static const auto op =
      find<std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, double)>(
          "tessera::rms_norm");
  return op.call(x, weight, eps);
}

std::tuple<Tensor, Tensor, Tensor> add_rms_norm(const Tensor& x,
                                                const Tensor& residual,
                                                const Tensor& weight,
                                                double eps) {
  static const auto op = find<std::tuple<Tensor, Tensor, Tensor>(
      const Tensor&, const Tensor&, const Tensor&, double)>(
      "tessera::add_rms_norm");
  return op.call(x, residual, weight, eps);
}

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& dy,
                                             const std::optional<Tensor>& dsum,
                                             const Tensor& x,
                                             const Tensor& weight,
                                             const Tensor& rstd) {
  static const auto op = find<std::tuple<Tensor, Tensor>(
      const Tensor&, const std::optional<Tensor>&, const Tensor&, const Tensor&,
      const Tensor&)>("tessera::rms_norm_backward");
  return op.call(dy, dsum, x, weight, rstd);
}

Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  static const auto op =
      find<Tensor(const Tensor&, const Tensor&, const Tensor&)>(
          "tessera::rope");
  return op.call(x, cos, sin);
}

Tensor rope_backward(const Tensor& dy, const Tensor& cos, const Tensor& sin) {
  static const auto op =
      find<Tensor(const Tensor&, const Tensor&, const Tensor&)>(
          "tessera::rope_backward");
  return op.call(dy, cos, sin);
}

Tensor swiglu(const Tensor& gate, const Tensor& up) {
  static const auto op =
      find<Tensor(const Tensor&, const Tensor&)>("tessera::swiglu");
  return op.call(gate, up);
}

std::tuple<Tensor, Tensor> swiglu_backward(const Tensor& dy, const Tensor& gate,
                                           const Tensor& up) {
  static const auto op = find<std::tuple<Tensor, Tensor>(
      const Tensor&, const Tensor&, const Tensor&)>("tessera::swiglu_backward");
  return op.call(dy, gate, up);
}

void swiglu_backward_in_place(const Tensor& dy, const Tensor& gate,
                              const Tensor& up) {
  static const auto op =
      find<void(Tensor, Tensor, Tensor)>("tessera::swiglu_backward_in_place");
  op.call(dy, gate, up);
}

Tensor product(const Tensor& a, const Tensor& b) {
  const Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
  product_out(out, a, b, 0);
  return out;
}

void product_out(const Tensor& out, const Tensor& a, const Tensor& b,
                 double beta) {
  static const auto op =
      find<void(Tensor, const Tensor&, const Tensor&, double)>(
          "tessera::product_out");
  op.call(out, a, b, beta);
}

Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     int64_t ignore_index) {
  static const auto op = find<Tensor(const Tensor&, const Tensor&, int64_t)>(
      "tessera::cross_entropy");
  return op.call(logits, targets, ignore_index);
}

Tensor cross_entropy_gradient(const Tensor& logits, const Tensor& targets,
                              int64_t ignore_index, const Tensor& gradient) {
  static const auto op =
      find<Tensor(const Tensor&, const Tensor&, int64_t, Tensor)>(
          "tessera::cross_entropy_gradient");
  return op.call(logits, targets, ignore_index, gradient);
}

}  // namespace tessera::operators
