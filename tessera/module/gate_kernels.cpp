#include "tessera/module/gate_kernels.h"

#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/_fused_rms_norm_backward.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/set.h>
#include <torch/library.h>

#include <type_traits>

#include "tessera/module/gate.h"
#include "tessera/module/gate_use.h"
#include "tessera/module/on_meta.h"

namespace tessera {

namespace {

enum class Inputs { as_they_are, cast };

// Full parameters come back as they are, for they have the dtype already.
at::Tensor cast_argument(StorageOwner& caster, const at::Tensor& value) {
  return value.defined() ? caster.cast_input(value) : value;
}

template <class T>
  requires(!std::is_same_v<std::decay_t<T>, at::Tensor>)
T&& cast_argument(StorageOwner&, T&& value) {
  return std::forward<T>(value);
}

template <class Op, Inputs inputs, class Signature = typename Op::schema>
struct Kernel;

template <class Op, Inputs inputs, class Result, class... Arguments>
struct Kernel<Op, inputs, Result(Arguments...)> {
  static constexpr c10::DispatchKeySet kBelowGate{
      c10::DispatchKeySet::FULL_AFTER, kGateKey};

  static Result call(c10::DispatchKeySet keys, Arguments... arguments) {
    if (in_meta_scope()) return below(keys, arguments...);
    GateUse use(Op::name, /*elementwise=*/false);
    (use.reads(arguments), ...);
    use.enter();
    if constexpr (inputs == Inputs::cast) {
      if (StorageOwner* caster = use.caster()) {
        return below(keys, cast_argument(*caster, arguments)...);
      }
    }
    return below(keys, arguments...);
  }

 private:
  static Result below(c10::DispatchKeySet keys, Arguments... arguments) {
    AutocastCacheOff no_cache;
    GateOff off;
    return Op::redispatch(keys & kBelowGate,
                          std::forward<Arguments>(arguments)...);
  }
};

// How torch::load gives a tensor its data. A shard copies it into place, or
// refuses it with names and shapes, as set_data does.
at::Tensor& set_from(c10::DispatchKeySet keys, at::Tensor& self,
                     const at::Tensor& source) {
  using Op = at::_ops::set__source_Tensor;
  const GatedStorage* storage = gated_storage_of(self);
  if (storage && storage->guard()) {
    self.set_data(source);
    return self;
  }
  GateUse use(Op::name, /*elementwise=*/false);
  use.writes(self);
  use.reads(source);
  use.enter();
  GateOff off;
  return Op::redispatch(
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kGateKey),
      self, source);
}

template <class Op, Inputs inputs>
void add_kernel(torch::Library& aten) {
  aten.impl(Op::name + std::string("aten::").size(),
            TORCH_FN((Kernel<Op, inputs>::call)));
}

}  // namespace

void register_gate_kernels(torch::Library& aten) {
  using namespace at::_ops;
  aten.impl("set_.source_Tensor", TORCH_FN(set_from));
  add_kernel<linear, Inputs::cast>(aten);
  add_kernel<matmul, Inputs::cast>(aten);
  add_kernel<mm, Inputs::cast>(aten);
  add_kernel<addmm, Inputs::cast>(aten);
  add_kernel<bmm, Inputs::cast>(aten);
  add_kernel<layer_norm, Inputs::cast>(aten);
  add_kernel<native_layer_norm, Inputs::cast>(aten);
  add_kernel<rms_norm, Inputs::cast>(aten);
  add_kernel<_fused_rms_norm, Inputs::cast>(aten);
  add_kernel<embedding, Inputs::as_they_are>(aten);
  add_kernel<native_layer_norm_backward, Inputs::as_they_are>(aten);
  add_kernel<_fused_rms_norm_backward, Inputs::as_they_are>(aten);
}

}  // namespace tessera
