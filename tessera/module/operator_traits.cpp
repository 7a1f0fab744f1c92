#include "tessera/module/operator_traits.h"

#include <ATen/core/enum_tag.h>

#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace tessera {

namespace {

using Names = std::unordered_set<std::string_view>;

// Read sizes, strides, types or flags of their tensor arguments, never data.
const Names& metadata_operators() {
  static const Names names = {
      "aten::_has_compatible_shallow_copy_type",
      "aten::set_data",
      "aten::is_same_size",
      "aten::empty_like",
      "aten::zeros_like",
      "aten::ones_like",
      "aten::full_like",
      "aten::rand_like",
      "aten::randn_like",
      "aten::randint_like",
      "aten::new_empty",
      "aten::new_empty_strided",
      "aten::new_zeros",
      "aten::new_ones",
      "aten::new_full",
      "aten::sym_size",
      "aten::sym_stride",
      "aten::sym_numel",
      "aten::sym_storage_offset",
      "aten::sym_is_contiguous",
      "aten::type_as",
      "aten::requires_grad_",
      "aten::detach_",
      "aten::retain_grad",
      "aten::record_stream",
  };
  return names;
}

const Names& elementwise_operators() {
  static const Names names = {
      "aten::copy_",       "aten::zero_",          "aten::fill_",
      "aten::_to_copy",    "aten::masked_fill_",   "aten::_fused_adam_",
      "aten::_fused_sgd_", "aten::_fused_adagrad_", "aten::_fused_adamw_",
      "aten::copy",        "aten::clone",          "aten::lift_fresh",
  };
  return names;
}

// Where FSDP2's cast_forward_inputs acts; the number is how many leading
// arguments are cast (statistics of norms, for example, are not).
int num_cast_arguments(std::string_view name) {
  static const std::unordered_map<std::string_view, int> table = {
      {"aten::linear", 1},
      {"aten::matmul", 2},
      {"aten::mm", 2},
      {"aten::mv", 2},
      {"aten::bmm", 2},
      {"aten::addmm", 3},
      {"aten::addmv", 3},
      {"aten::baddbmm", 3},
      {"aten::bilinear", 2},
      {"aten::einsum", 2},
      {"aten::conv1d", 1},
      {"aten::conv2d", 1},
      {"aten::conv3d", 1},
      {"aten::convolution", 1},
      {"aten::conv_transpose1d", 1},
      {"aten::conv_transpose2d", 1},
      {"aten::conv_transpose3d", 1},
      {"aten::layer_norm", 1},
      {"aten::native_layer_norm", 1},
      {"aten::rms_norm", 1},
      {"aten::_fused_rms_norm", 1},
      {"tessera::rms_norm", 1},
      {"tessera::add_rms_norm", 2},
      {"aten::embedding_bag", 7},  // the last one: weights of the samples
      {"aten::group_norm", 1},
      {"aten::native_group_norm", 1},
      {"aten::batch_norm", 1},
      {"aten::instance_norm", 1},
      {"aten::prelu", 1},
      {"aten::_prelu_kernel", 1},
      {"aten::lstm", 2},
      {"aten::gru", 2},
      {"aten::rnn_tanh", 2},
      {"aten::rnn_relu", 2},
      {"aten::lstm_cell", 2},
      {"aten::gru_cell", 2},
      {"aten::rnn_tanh_cell", 2},
      {"aten::rnn_relu_cell", 2},
  };
  const auto found = table.find(name);
  return found == table.end() ? 0 : found->second;
}

bool holds_tensors(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return true;
    case c10::TypeKind::ListType:
    case c10::TypeKind::OptionalType:
      for (const auto& inner : type.containedTypes()) {
        if (holds_tensors(*inner)) return true;
      }
      return false;
    default:
      return false;
  }
}

bool returns_tensors(const c10::FunctionSchema& schema) {
  for (const auto& result : schema.returns()) {
    if (holds_tensors(*result.type())) return true;
  }
  return false;
}

// Made of other operators only, which come to the gate by themselves.
bool is_composite(const c10::OperatorHandle& op) {
  using Key = c10::DispatchKey;
  return op.hasKernelForDispatchKey(Key::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(Key::CPU) &&
         !op.hasKernelForDispatchKey(Key::CUDA) &&
         !op.hasKernelForDispatchKey(Key::AutogradCPU) &&
         !op.hasKernelForDispatchKey(Key::AutogradCUDA) &&
         !op.hasKernelForDispatchKey(Key::Autograd);
}

// View-annotated operators, those that look at metadata, and composites such as
// `size` or `item` that return no tensor.
bool is_passive(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  if (metadata_operators().contains(schema.name())) return true;
  for (const auto& argument : schema.arguments()) {
    const auto* alias = argument.alias_info();
    if (alias && !alias->isWrite()) return true;
  }
  return is_composite(op) && !returns_tensors(schema);
}

bool is_elementwise(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  if (elementwise_operators().contains(name)) return true;
  if (op.hasTag(at::Tag::pointwise)) return true;
  // Of the foreach operators all but those that reduce.
  return name.starts_with("aten::_foreach_") && name != "aten::_foreach_max" &&
         name.find("norm") == std::string::npos &&
         name.find("powsum") == std::string::npos;
}

}  // namespace

OperatorTraits make_traits(const c10::OperatorHandle& op) {
  OperatorTraits traits;
  const auto& schema = op.schema();
  const auto& arguments = schema.arguments();
  traits.passive = is_passive(op);
  traits.elementwise = is_elementwise(op);
  traits.aten = schema.name().starts_with("aten::");
  traits.may_return_input =
      schema.name() == "aten::to" || schema.name() == "aten::contiguous";
  int num_cast = num_cast_arguments(schema.name());
  traits.casts_inputs = num_cast > 0;
  // Recurrent layers over packed sequences: `batch_sizes` comes in between.
  if (traits.casts_inputs && schema.overload_name() == "data") ++num_cast;
  for (size_t i = 0; i < arguments.size() && i < 64; ++i) {
    if (!holds_tensors(*arguments[i].type())) continue;
    traits.tensor_arguments.push_back(static_cast<uint8_t>(i));
    const uint64_t bit = uint64_t{1} << i;
    const auto* alias = arguments[i].alias_info();
    if (alias && alias->isWrite()) traits.written |= bit;
    if (static_cast<int>(i) < num_cast) traits.cast |= bit;
  }
  return traits;
}

const OperatorTraits& traits_of(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<c10::OperatorHandle, OperatorTraits> cache;
  const auto found = cache.find(op);
  if (found != cache.end()) return found->second;
  return cache.emplace(op, make_traits(op)).first->second;
}

}  // namespace tessera
