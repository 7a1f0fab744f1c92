#include "tessera/comm/reduction.h"

#include <ATen/ops/view_as_real.h>

#include "tessera/comm/reduce_op_name.h"

namespace tessera::distributed {
namespace {

bool is_bitwise(ReduceOp op) {
  return op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor;
}

bool has_meaning(ReduceOp op, c10::ScalarType dtype) {
  if (is_bitwise(op)) {
    return c10::isIntegralType(dtype, /*includeBool=*/true);
  }
  if (op == ReduceOp::avg || op == ReduceOp::premul_sum) {
    return c10::isFloatingType(dtype) || c10::isComplexType(dtype);
  }
  return op == ReduceOp::sum || !c10::isComplexType(dtype);
}

// Of truth values the sum is true when any is, the product when all are; a
// backend that adds bytes would leave a 2 in a bool.
ReduceOp of_bools(ReduceOp op) {
  if (op == ReduceOp::sum) return ReduceOp::max;
  return op == ReduceOp::product ? ReduceOp::min : op;
}

}  // namespace

Reduction::Reduction(ReduceOp op) : op(op) {
  require<InvalidArgument>(op != ReduceOp::premul_sum, [] {
    return str(
        "Reduction: premul_sum needs a factor; write "
        "distributed::premul_sum(factor).");
  });
}

Reduction premul_sum(double factor) {
  Reduction reduction;
  reduction.op = ReduceOp::premul_sum;
  reduction.factor = factor;
  return reduction;
}

CallTerms terms_of(const Reduction& reduction, int root) {
  return {.reduction = name_of(reduction.op), .root = root};
}

void check_reduction(const ProcessGroup::Impl& group, const char* call,
                     const at::Tensor& tensor, const Reduction& reduction) {
  require<InvalidArgument>(
      has_meaning(reduction.op, tensor.scalar_type()), [&] {
        return tessera::str(
            group.what(call), name_of(reduction.op), " of ",
            tensor.scalar_type(), "; ",
            is_bitwise(reduction.op) ? "expected whole numbers."
            : reduction.op == ReduceOp::avg ||
                    reduction.op == ReduceOp::premul_sum
                ? "expected floating or complex numbers."
                : "complex numbers have sum, avg and premul_sum alone.");
      });
  const std::string& backend = group.entry_of(tensor).name;
  require<Unsupported>(!is_bitwise(reduction.op) || backend != "nccl", [&] {
    return str(group.what(call), "NCCL has no ", name_of(reduction.op),
               "; use a group over Gloo with tensors on the CPU.");
  });
}

c10d::ReduceOp to_c10d(const ProcessGroup::Impl& group,
                       const at::Tensor& tensor, const Reduction& reduction) {
  const bool bools = tensor.scalar_type() == c10::kBool;
  switch (bools ? of_bools(reduction.op) : reduction.op) {
    case ReduceOp::sum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::min:
      return c10d::ReduceOp::MIN;
    case ReduceOp::max:
      return c10d::ReduceOp::MAX;
    case ReduceOp::avg:
      return c10d::ReduceOp::AVG;
    case ReduceOp::product:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::band:
      return c10d::ReduceOp::BAND;
    case ReduceOp::bor:
      return c10d::ReduceOp::BOR;
    case ReduceOp::bxor:
      return c10d::ReduceOp::BXOR;
    case ReduceOp::premul_sum:
      if (must_scale(group, tensor, reduction)) return c10d::ReduceOp::SUM;
      return c10d::makeNCCLPreMulSum(reduction.factor);
  }
  throw InvalidArgument("Reduction: unknown ReduceOp.");
}

bool must_scale(const ProcessGroup::Impl& group, const at::Tensor& tensor,
                const Reduction& reduction) {
  return reduction.op == ReduceOp::premul_sum &&
         group.entry_of(tensor).name != "nccl";
}

at::Tensor flat(const at::Tensor& tensor) {
  return (tensor.is_complex() ? at::view_as_real(tensor) : tensor).view({-1});
}

std::vector<at::Tensor> flat(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> views;
  views.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) views.push_back(flat(tensor));
  return views;
}

at::Tensor flat_output(Work::Impl& work, const at::Tensor& tensor) {
  work.will_write(tensor);
  return flat(tensor);
}

std::vector<at::Tensor> flat_outputs(Work::Impl& work,
                                     const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) work.will_write(tensor);
  return flat(tensors);
}

}  // namespace tessera::distributed
