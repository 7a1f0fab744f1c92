#include "tessera/state/get_state_dict.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <functional>
#include <set>

#include "tessera/base/error.h"
#include "tessera/state/box_view.h"
#include "tessera/state/gather_full.h"
#include "tessera/state/optimizer_forms.h"
#include "tessera/state/state.h"

namespace tessera {
namespace {

StateDict to_host(StateDict dict) {
  for (StateEntry& entry : dict) {
    if (auto* tensor = std::get_if<StateTensor>(&entry.leaf)) {
      tensor->local = tensor->local.to(tensor->local.options().device(at::kCPU),
                                       /*non_blocking=*/false, /*copy=*/true);
    }
  }
  return dict;
}

// What `collect` gives, in the form that the options ask for.
StateDict finish(torch::nn::Module& model, const StateDictOptions& options,
                 const std::string& what,
                 const std::function<StateDict()>& collect) {
  const at::NoGradGuard no_grad;
  require<InvalidArgument>(
      options.full_state_dict || !options.broadcast_from_rank0, [&] {
        return str(what, ": broadcast_from_rank0 needs full_state_dict.");
      });
  if (options.full_state_dict) {
    return gather_full(
        state_group(model, options.world), what, collect,
        options.cpu_offload ? GatherTo::host_of_rank0 : GatherTo::every_rank);
  }
  StateDict dict = collect();
  return options.cpu_offload ? to_host(std::move(dict)) : dict;
}

// The names of the submodules in the model, with a dot behind.
std::vector<std::string> prefixes_of(torch::nn::Module& model,
                                     const StateDictOptions& options) {
  std::vector<std::string> prefixes;
  const auto modules = model.named_modules("", /*include_self=*/false);
  for (const torch::nn::Module* wanted : options.submodules) {
    const auto found = std::ranges::find_if(modules, [&](const auto& item) {
      return item.value().get() == wanted;
    });
    require<InvalidArgument>(found != modules.end(), [] {
      return str(
          "get_model_state_dict: a module in `submodules` is not below the "
          "model.");
    });
    prefixes.push_back(found->key() + ".");
  }
  return prefixes;
}

const std::string& name_of(const StateEntry& entry) {
  return std::get<std::string>(entry.path.front());
}

StateDict below_submodules(const StateDict& dict, torch::nn::Module& model,
                           const StateDictOptions& options) {
  if (options.submodules.empty()) return dict;
  const std::vector<std::string> prefixes = prefixes_of(model, options);
  StateDict kept;
  for (const StateEntry& entry : dict) {
    const std::string& name = name_of(entry);
    for (const std::string& prefix : prefixes) {
      if (!name.starts_with(prefix)) continue;
      kept.push_back(
          {{options.keep_submodule_prefixes ? name
                                            : name.substr(prefix.size())},
           entry.leaf});
    }
  }
  return kept;
}

StateDict model_entries(torch::nn::Module& model,
                        const StateDictOptions& options) {
  StateDict dict = model_state(model)->state_dict();
  if (options.ignore_frozen_params) {
    std::set<std::string> frozen;
    for (const auto& item : model.named_parameters()) {
      if (!item.value().requires_grad()) frozen.insert(item.key());
    }
    std::erase_if(dict, [&](const StateEntry& entry) {
      return frozen.contains(name_of(entry));
    });
  }
  dict = below_submodules(dict, model, options);
  require<InvalidArgument>(
      !dict.empty() || options.ignore_frozen_params || !options.strict,
      [] { return str("get_model_state_dict: the model has no state."); });
  return dict;
}

}  // namespace

StateDict get_model_state_dict(torch::nn::Module& model,
                               const StateDictOptions& options) {
  return finish(model, options, "get_model_state_dict",
                [&] { return model_entries(model, options); });
}

StateDict get_optimizer_state_dict(torch::nn::Module& model,
                                   const Optimizers& optimizers,
                                   const StateDictOptions& options) {
  return finish(model, options, "get_optimizer_state_dict", [&] {
    StateDict dict;
    for (torch::optim::Optimizer* optimizer : optimizers) {
      append_optimizer(dict, optimizer_state(model, *optimizer)->state_dict());
    }
    return options.flatten_optimizer_state_dict ? flatten_optimizer(dict)
                                                : dict;
  });
}

StateDict get_optimizer_state_dict(torch::nn::Module& model,
                                   torch::optim::Optimizer& optimizer,
                                   const StateDictOptions& options) {
  return get_optimizer_state_dict(model, Optimizers{&optimizer}, options);
}

std::pair<StateDict, StateDict> get_state_dict(
    torch::nn::Module& model, const Optimizers& optimizers,
    const StateDictOptions& options) {
  StateDict of_model = get_model_state_dict(model, options);
  return {std::move(of_model),
          get_optimizer_state_dict(model, optimizers, options)};
}

NamedTensors named_tensors(const StateDict& dict) {
  NamedTensors tensors;
  for (const StateEntry& entry : dict) {
    const auto* tensor = std::get_if<StateTensor>(&entry.leaf);
    if (tensor == nullptr) continue;
    require<InvalidArgument>(
        elements_of(tensor->boxes) == elements_of(tensor->sizes), [&] {
          return str("named_tensors: '", key_of(entry.path),
                     "' is there in part. Get the dict with full_state_dict.");
        });
    tensors.emplace_back(key_of(entry.path),
                         tensor->local.reshape(tensor->sizes));
  }
  return tensors;
}

StateDict dict_of(const NamedTensors& tensors) {
  StateDict dict;
  for (const auto& [name, tensor] : tensors) {
    dict.push_back({{name}, state_tensor(tensor)});
  }
  return dict;
}

}  // namespace tessera
