#include "tessera/shard/fully_shard.h"

#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/module/gate.h"
#include "tessera/module/traversal.h"
#include "tessera/shard/check_module.h"
#include "tessera/shard/check_precision.h"
#include "tessera/shard/context.h"
#include "tessera/shard/find_units.h"
#include "tessera/shard/found.h"
#include "tessera/tensor/shard_tensor.h"

namespace tessera {

namespace {

using Modules = std::vector<torch::nn::Module*>;

// One rank that keeps a parameter alone is `never`, all ranks are `always`.
ReshardAfterForward resolved(ReshardAfterForward reshard,
                             const DeviceMesh& shard) {
  if (!reshard.ranks()) return reshard;
  const int64_t ranks = *reshard.ranks();
  require<InvalidArgument>(
      ranks >= 1 && ranks <= shard.numel() && shard.numel() % ranks == 0, [&] {
        return str("fully_shard: reshard_after_forward over ", ranks,
                   " ranks; expected a number that divides the ", shard.numel(),
                   " ranks of the mesh ", shard.describe(), ".");
      });
  if (ranks == 1) return Reshard::never;
  if (ranks == shard.numel()) return Reshard::always;
  return reshard;
}

std::shared_ptr<ShardContext> context_for(const Found& found,
                                          const MeshRoles& roles) {
  auto lanes = make_lanes(roles);
  for (const auto& unit : found.below) {
    require<InvalidState>(!unit->context()->backward_running(), [&] {
      return str("fully_shard: a backward pass through unit '", unit->name(),
                 "' is running.");
    });
  }
  return std::make_shared<ShardContext>(std::move(lanes));
}

std::shared_ptr<Communicator> keepers_of(const FullyShardOptions& options,
                                         const MeshRoles& roles) {
  const auto ranks = options.reshard_after_forward.ranks();
  return ranks ? roles.shard.block(*ranks).communicator("gather") : nullptr;
}

c10::ScalarType compute_dtype(const FoundParameter& found,
                              const MixedPrecisionPolicy& policy) {
  return policy.param_dtype.value_or(found.tensor.scalar_type());
}

std::vector<int64_t> shard_dims(const std::vector<FoundParameter>& parameters,
                                const ShardPlacementFn& placement) {
  std::vector<int64_t> dims;
  for (const FoundParameter& found : parameters) {
    const int64_t num_dims = found.tensor.dim();
    const int64_t dim =
        placement ? placement(found.tensor).value_or(Shard{}).dim : 0;
    require<InvalidArgument>(dim >= -num_dims && dim < num_dims, [&] {
      return str("fully_shard: shard_placement_fn cuts parameter '", found.name,
                 "' of shape ", found.tensor.sizes(), " along dim ", dim,
                 ", which it does not have.");
    });
    dims.push_back(dim < 0 ? dim + num_dims : dim);
  }
  return dims;
}

// Parameters that can travel in one buffer, in order of first appearance.
std::vector<std::unique_ptr<ParameterGroup>> make_groups(
    std::vector<FoundParameter> parameters, const FullyShardOptions& options,
    Strategy strategy, const std::shared_ptr<Communicator>& keepers,
    const std::shared_ptr<const ShardLanes>& lanes) {
  check_gather_copy(options);
  const MixedPrecisionPolicy& policy = options.mp_policy;
  std::vector<GroupOptions> kinds;
  std::vector<std::vector<FoundParameter>> members;
  std::map<std::tuple<c10::ScalarType, bool, bool>, size_t> index;
  for (FoundParameter& found : parameters) {
    const auto dtype = found.tensor.scalar_type();
    const auto compute = compute_dtype(found, policy);
    const auto& transform = options.gather_transform;
    const bool transformed = transform && transform->applies_to(found.tensor);
    const auto key =
        std::tuple(dtype, found.tensor.requires_grad(), transformed);
    const auto [at, is_new] = index.emplace(key, members.size());
    if (is_new) {
      members.emplace_back();
      kinds.push_back({.strategy = strategy,
                       .master_dtype = dtype,
                       .compute_dtype = compute,
                       .reduce_dtype = policy.reduce_dtype.value_or(compute),
                       .keepers = keepers,
                       .offload = options.offload_policy,
                       .transform = transformed ? transform : nullptr,
                       .gather_copy = options.gather_copy,
                       .debug = options.debug});
    }
    members[at->second].push_back(std::move(found));
  }
  std::vector<std::unique_ptr<ParameterGroup>> groups;
  for (size_t i = 0; i < members.size(); ++i) {
    auto dims = shard_dims(members[i], options.shard_placement_fn);
    groups.push_back(std::make_unique<ParameterGroup>(
        std::move(members[i]), std::move(dims), kinds[i], lanes));
  }
  return groups;
}

// The first unit owns a tied parameter; here its dictionary entry becomes the
// owner's shard, and the member's use gathers the owner's unit.
void join_tied(const std::vector<FoundParameter>& tied) {
  for (const FoundParameter& found : tied) {
    auto* unit = static_cast<Unit*>(gated_storage_of(found.tensor)->owner());
    for (const auto& group : unit->groups()) {
      for (size_t i = 0; i < group->size(); ++i) {
        if (!group->full(i).is_same(found.tensor)) continue;
        for (const ParameterOwner& at : found.owners) {
          set_entry(at, group->shard(i));
        }
        log_info(str("fully_shard: parameter '", found.name, "' is tied to '",
                     group->name(i), "' of unit '", unit->name(),
                     "', which owns it; its use here gathers that unit."));
      }
    }
  }
}

void move_buffers(const Modules& modules, c10::Device device) {
  torch::NoGradGuard no_grad;
  for (torch::nn::Module* module : modules) {
    for (at::Tensor& buffer : module->buffers()) {
      if (!buffer.defined() || buffer.is_meta()) continue;
      if (buffer.device() != device) buffer.set_data(buffer.to(device));
    }
  }
}

std::string type_name(const Modules& modules) {
  std::string text;
  for (torch::nn::Module* module : modules) {
    text += (text.empty() ? "" : ", ") + module->name();
  }
  return text;
}

// Names below a root are those that the root gives.
void name_from(torch::nn::Module& root, const Found& found) {
  std::unordered_map<const torch::nn::Module*, std::string> names;
  for (const auto& [name, module] : named_modules(root)) {
    names.emplace(module, name);
  }
  for (const auto& unit : found.below) {
    std::string name;
    for (const auto* module : unit->modules()) {
      const auto at = names.find(module);
      if (at != names.end()) name += (name.empty() ? "" : ", ") + at->second;
    }
    if (!name.empty()) unit->set_name(name);
  }
  for (const FoundParameter& parameter : found.managed) {
    const auto unit = unit_of(parameter.tensor);
    for (const auto& group : unit->groups()) {
      for (size_t i = 0; i < group->size(); ++i) {
        if (group->shard(i).is_same(parameter.tensor)) {
          group->rename(i, parameter.name);
        }
      }
    }
  }
}

void shard(const Modules& modules, FullyShardOptions options,
           Strategy strategy) {
  check_options(options);
  const MeshRoles roles = mesh_roles(options.mesh, options.replicate_axis);
  options.reshard_after_forward =
      resolved(options.reshard_after_forward, roles.shard);
  if (!options.prefetch) {
    options.prefetch = options.mesh.world().device().is_cpu() ? 0 : 1;
  }
  require<InvalidArgument>(!modules.empty(), [] {
    return str("fully_shard: the list of modules is empty.");
  });
  for (size_t i = 0; i < modules.size(); ++i) {
    require<InvalidArgument>(modules[i] != nullptr, [&] {
      return str("fully_shard: module ", i, " of the list is null.");
    });
  }
  install_gate();
  check_modules(modules, options.ignored_params);
  Found found = find(modules, options);
  check_not_sharded(modules, found);
  check_parameters(found.own);
  check_precision(found.own, options.mp_policy);
  check_holders(found.own);
  auto context = context_for(found, roles);
  if (options.start_check == StartCheck::on) {
    check_equal_start(found.own, *context->lanes());
  }
  if (context->lanes()->control->rank() == 0) {
    warn_of_low_masters(found.own, options.mp_policy);
  }
  std::shared_ptr<Unit> unit;
  if (!found.own.empty()) {
    unit = std::make_shared<Unit>(
        type_name(modules), Unit::ModuleIds(modules.begin(), modules.end()),
        covered_by(modules, found), options,
        make_groups(std::move(found.own), options, strategy,
                    keepers_of(options, roles), context->lanes()));
  }
  // From here on nothing fails.
  move_buffers(modules, context->lanes()->device);
  for (const auto& below : found.below) {
    const auto other = below->context();  // alive until it has been emptied
    context->absorb(*other);
  }
  if (unit) {
    unit->set_context(context);
    context->add(*unit);
    unit->take_over();
    for (const auto& below : found.below) {
      if (!below->parent()) below->set_parent(unit);
    }
  }
  join_tied(found.tied);
  if (modules.size() == 1) name_from(*modules[0], found);
}

}  // namespace

void fully_shard(torch::nn::Module& module, const FullyShardOptions& options) {
  shard({&module}, options, Strategy::shard);
}

void fully_shard(const Modules& modules, const FullyShardOptions& options) {
  shard(modules, options, Strategy::shard);
}

void replicate(torch::nn::Module& model, const FullyShardOptions& options) {
  for (const auto& child : model.children()) {
    const auto below = child->children();
    if (child->parameters(/*recurse=*/false).empty() && !below.empty()) {
      for (const auto& element : below) {
        shard({element.get()}, options, Strategy::replicate);
      }
    } else {
      shard({child.get()}, options, Strategy::replicate);
    }
  }
  shard({&model}, options, Strategy::replicate);
}

UnshardHandle unshard(torch::nn::Module& module, Wait wait) {
  check_is_no_part(module, "unshard");
  UnshardHandle handle(units_of(module));
  for (const auto& unit : units_of(module)) unit->start_gather("unshard", "");
  if (wait == Wait::yes) handle.wait();
  return handle;
}

void UnshardHandle::wait() {
  for (const auto& unit : std::exchange(units_, {})) {
    if (unit->gathering()) unit->gather("unshard", "");
  }
}

void reshard(torch::nn::Module& module) {
  check_is_no_part(module, "reshard");
  for (const auto& unit : units_of(module)) {
    unit->reshard();
    unit->context()->forget(*unit);
  }
}

at::Tensor gathered(const at::Tensor& parameter) {
  GatedStorage* storage = gated_storage_of(parameter);
  if (!storage || !storage->owner()) return parameter.detach();
  gather_for_read(parameter, "gathered");
  at::Tensor plain = tensor_over(storage, parameter.scalar_type(), 0, {0});
  auto* impl = plain.unsafeGetTensorImpl();
  impl->set_storage_offset(parameter.storage_offset());
  impl->set_sizes_and_strides(parameter.sizes(), parameter.strides());
  return plain;
}

void mark_changed(torch::nn::Module& module) {
  for (const auto& unit : units_below(module)) {
    for (const auto& group : unit->groups()) {
      group->master()->data.unsafeGetTensorImpl()->bump_version();
    }
  }
}

bool is_fully_sharded(torch::nn::Module& module) {
  return !units_of(module).empty();
}

}  // namespace tessera
