#include "tessera/module/gate.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <memory>
#include <mutex>

#include "tessera/base/error.h"
#include "tessera/module/gate_kernels.h"
#include "tessera/module/gate_use.h"
#include "tessera/module/on_meta.h"
#include "tessera/module/operator_traits.h"

namespace tessera {

namespace {

constexpr c10::DispatchKeySet kBelowGate(c10::DispatchKeySet::FULL_AFTER,
                                         kGateKey);

// Calls `visit` with each tensor that argument `value` holds.
template <class Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isTensor()) visit(element.toTensor());
    }
  }
}

// Uninitialised allocations that name no device go to the meta device.
void redirect_to_meta(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  if (schema.name() != "aten::empty" && schema.name() != "aten::empty_strided") {
    return;
  }
  const auto& arguments = schema.arguments();
  const size_t base = stack->size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue& value = (*stack)[base + i];
    if (arguments[i].name() == "device" && value.isNone()) {
      value = c10::Device(c10::kMeta);
    }
  }
}

c10::IValue cast_argument(StorageOwner& caster, const c10::IValue& value) {
  if (value.isTensor() && value.toTensor().defined()) {
    return caster.cast_input(value.toTensor());
  }
  if (value.isTensorList()) {
    std::vector<at::Tensor> cast;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      cast.push_back(caster.cast_input(tensor));
    }
    return cast;
  }
  return value;
}

void note_arguments(GateUse& use, const OperatorTraits& traits,
                    const c10::IValue* arguments) {
  for (uint8_t i : traits.tensor_arguments) {
    const bool written = traits.written >> i & 1;
    for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      if (written) use.writes(tensor);
      use.reads(tensor);
    });
  }
}

void call_below(const c10::OperatorHandle& op, const OperatorTraits& traits,
                c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  AutocastCacheOff no_cache;
  if (!traits.aten) {
    // A user's operator may run modules inside: they must meet the gate again.
    return op.redispatchBoxed(keys & kBelowGate, stack);
  }
  GateOff off;
  op.redispatchBoxed(keys & kBelowGate, stack);
}

// `to`, `contiguous`: when the result is the gated tensor itself, the caller
// will read it through a pointer.
void call_may_return_input(const c10::OperatorHandle& op,
                           c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const size_t base = stack->size() - op.schema().arguments().size();
  const at::Tensor input = (*stack)[base].toTensor();
  op.redispatchBoxed(keys & kBelowGate, stack);
  if (stack->back().isTensor() && stack->back().toTensor().is_same(input)) {
    gather_for_read(input, op.schema().name().c_str());
  }
}

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
              torch::jit::Stack* stack) {
  if (in_meta_scope()) {
    redirect_to_meta(op, stack);
    GateOff off;
    return op.redispatchBoxed(keys & kBelowGate, stack);
  }
  const OperatorTraits& traits = traits_of(op);
  if (traits.may_return_input) return call_may_return_input(op, keys, stack);
  if (traits.passive) return op.redispatchBoxed(keys & kBelowGate, stack);

  c10::IValue* arguments =
      stack->data() + (stack->size() - op.schema().arguments().size());
  GateUse use(op.schema().name().c_str(), traits.elementwise);
  note_arguments(use, traits, arguments);
  use.enter();
  if (traits.casts_inputs) {
    if (StorageOwner* caster = use.caster()) {
      for (uint8_t i : traits.tensor_arguments) {
        if (traits.cast >> i & 1) {
          arguments[i] = cast_argument(*caster, arguments[i]);
        }
      }
    }
  }
  call_below(op, traits, keys, stack);
}

std::string overload_of(const c10::OperatorName& name) {
  std::string text = name.name.substr(name.name.find("::") + 2);
  return name.overload_name.empty() ? text : text + "." + name.overload_name;
}

// A fallthrough costs nothing at run time.
void register_fallthroughs(torch::Library& aten) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.getNamespace() != "aten") continue;
    const auto op = dispatcher.findSchema(name);
    if (!op) continue;
    const OperatorTraits traits = make_traits(*op);
    if (!traits.passive || traits.may_return_input) continue;
    aten.impl(overload_of(name).c_str(), torch::CppFunction::makeFallthrough());
  }
}

struct Registrations {
  torch::Library any{torch::Library::IMPL, "_", kGateKey, __FILE__, __LINE__};
  torch::Library aten{torch::Library::IMPL, "aten", kGateKey, __FILE__,
                      __LINE__};
};

}  // namespace

void install_gate() {
  // Lives as long as the process: tensors may outlive every static object.
  static Registrations* const registrations = [] {
    require<InvalidState>(
        !c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(
            kGateKey),
        [] {
          return str("tessera: another library in this process has registered "
                     "a fallback for the dispatch key DeferredInit, which "
                     "tessera's gate needs; only one of them can be used.");
        });
    auto* made = new Registrations;
    made->any.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
    register_fallthroughs(made->aten);
    register_gate_kernels(made->aten);
    return made;
  }();
  (void)registrations;
}

void gather_for_read(at::TensorList tensors, const char* name) {
  GateUse use(name, /*elementwise=*/true);
  use.reads(tensors);
  use.enter();
}

}  // namespace tessera
