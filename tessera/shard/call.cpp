#include "tessera/shard/call.h"

#include "tessera/base/error.h"
#include "tessera/shard/context.h"
#include "tessera/shard/find_units.h"
#include "tessera/shard/step_phase.h"

namespace tessera {

CallScope::CallScope(torch::nn::Module& module) : units_(units_of(module)) {
  for (const auto& unit : units_) ++unit->calls_under_way;
}

CallScope::~CallScope() {
  for (const auto& unit : units_) {
    --unit->calls_under_way;
    if (unit->kept_after_forward() || in_backward()) continue;
    unit->context()->leave_forward(*unit);
    unit->context()->forget(*unit);
  }
}

at::Tensor CallScope::input(const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.is_floating_point()) return tensor;
  for (const auto& unit : units_) {
    if (unit->casts_inputs()) {
      return tensor.to(*unit->options().mp_policy.param_dtype);
    }
  }
  return tensor;
}

at::Tensor CallScope::output(const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.is_floating_point()) return tensor;
  for (const auto& unit : units_) {
    const auto& dtype = unit->options().mp_policy.output_dtype;
    if (dtype) return tensor.to(*dtype);
  }
  return tensor;
}

void CallScope::refuse_unknown_output() const {
  for (const auto& unit : units_) {
    require<InvalidArgument>(
        !unit->options().mp_policy.output_dtype.has_value(), [&] {
          return str("call: unit '", unit->name(),
                     "' has an output_dtype, but "
                     "the module returns a type that cannot be looked into. "
                     "Return tensors in standard containers.");
        });
  }
}

}  // namespace tessera
