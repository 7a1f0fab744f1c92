#include "tessera/shard/unit_settings.h"

#include <cmath>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/shard/context.h"
#include "tessera/shard/find_units.h"

namespace tessera {
namespace {

using Units = std::vector<std::shared_ptr<Unit>>;

// None for a module that was given to fully_shard when units below it had taken
// all parameters, without Recurse.
Units units_for(torch::nn::Module& module, Recurse recurse,
                const char* function) {
  Units below = units_below(module);
  require<InvalidArgument>(!below.empty(), [&] {
    return str(function, ": no module in ", module.name(),
               " was given to fully_shard.");
  });
  check_is_no_part(module, function);
  return recurse == Recurse::yes ? std::move(below) : units_of(module);
}

// The units of a module that must have some.
Units own_units(torch::nn::Module& module, const char* function) {
  Units units = units_of(module);
  require<InvalidArgument>(!units.empty(), [&] {
    return str(function, ": the module ", module.name(),
               " was not given to fully_shard, so it has no unit.");
  });
  return units;
}

std::vector<std::weak_ptr<Unit>> listed_units(
    const std::vector<torch::nn::Module*>& modules, const char* function) {
  std::vector<std::weak_ptr<Unit>> listed;
  for (torch::nn::Module* module : modules) {
    require<InvalidArgument>(module != nullptr, [&] {
      return str(function, ": a module of the list is null.");
    });
    for (auto& unit : own_units(*module, function)) listed.push_back(unit);
  }
  return listed;
}

// Of those whose parameters travel.
Units own_sharded_units(torch::nn::Module& module, const char* function) {
  Units units = own_units(module, function);
  for (const auto& unit : units) {
    for (const auto& group : unit->groups()) {
      require<InvalidArgument>(
          group->options().strategy == Strategy::shard, [&] {
            return str(function, ": unit '", unit->name(),
                       "' is replicated: it is never gathered, and its "
                       "gradients are summed by all-reduce. "
                       "set_all_reduce_hook sees them.");
          });
    }
  }
  return units;
}

template <class Change>
void change_groups(const Units& units, const Change& change) {
  for (const auto& unit : units) {
    for (const auto& group : unit->groups()) change(*group);
  }
}

}  // namespace

void set_requires_gradient_sync(torch::nn::Module& module, Sync sync,
                                Recurse recurse) {
  for (const auto& unit :
       units_for(module, recurse, "set_requires_gradient_sync")) {
    unit->gradient_sync = sync == Sync::on;
  }
}

void set_requires_all_reduce(torch::nn::Module& module, AllReduce all_reduce,
                             Recurse recurse) {
  change_groups(units_for(module, recurse, "set_requires_all_reduce"),
                [&](ParameterGroup& group) {
                  group.gradients().all_reduce = all_reduce == AllReduce::on;
                });
}

void set_reshard_after_forward(torch::nn::Module& module, Reshard reshard,
                               Recurse recurse) {
  for (const auto& unit :
       units_for(module, recurse, "set_reshard_after_forward")) {
    unit->set_reshard_after_forward(reshard);
  }
}

void set_reshard_after_backward(torch::nn::Module& module, Reshard reshard,
                                Recurse recurse) {
  for (const auto& unit :
       units_for(module, recurse, "set_reshard_after_backward")) {
    unit->reshard_after_backward =
        reshard != Reshard::never || unit->a_rank_owns_nothing();
  }
}

void set_modules_to_forward_prefetch(
    torch::nn::Module& module, const std::vector<torch::nn::Module*>& modules) {
  const auto listed = listed_units(modules, "set_modules_to_forward_prefetch");
  for (auto& unit : own_units(module, "set_modules_to_forward_prefetch")) {
    unit->prefetch_in_forward = listed;
  }
}

void set_modules_to_backward_prefetch(
    torch::nn::Module& module, const std::vector<torch::nn::Module*>& modules) {
  const auto listed = listed_units(modules, "set_modules_to_backward_prefetch");
  for (auto& unit : own_units(module, "set_modules_to_backward_prefetch")) {
    unit->prefetch_in_backward = listed;
  }
}

void set_gradient_divide_factor(torch::nn::Module& module,
                                std::optional<double> factor) {
  require<InvalidArgument>(
      !factor || (*factor > 0 && std::isfinite(*factor)), [&] {
        return str("set_gradient_divide_factor: got ", *factor,
                   "; expected a finite number above 0.");
      });
  change_groups(
      own_units(module, "set_gradient_divide_factor"),
      [&](ParameterGroup& group) { group.gradients().divide_factor = factor; });
}

void set_all_reduce_hook(torch::nn::Module& module, AllReduceHook hook) {
  change_groups(
      own_units(module, "set_all_reduce_hook"),
      [&](ParameterGroup& group) { group.gradients().all_reduce_hook = hook; });
}

void step_in_backward(torch::nn::Module& module, ShardStep step) {
  const Units units = units_for(module, Recurse::yes, "step_in_backward");
  const auto shared =
      step ? std::make_shared<const ShardStep>(std::move(step)) : nullptr;
  for (const auto& unit : units) unit->step.set(shared);
  change_groups(units, [&](ParameterGroup& group) {
    group.master()->steps_in_backward = shared != nullptr;
  });
}

void set_norm_in_backward(torch::nn::Module& module, NormInBackward norm,
                          Recurse recurse) {
  for (const auto& unit : units_for(module, recurse, "set_norm_in_backward")) {
    unit->norm_in_backward = norm == NormInBackward::on;
  }
}

void share_comm_ctx(const std::vector<torch::nn::Module*>& modules) {
  std::shared_ptr<const ShardLanes> shared;
  for (torch::nn::Module* module : modules) {
    require<InvalidArgument>(module != nullptr, [] {
      return str("share_comm_ctx: a module of the list is null.");
    });
    const auto units = own_units(*module, "share_comm_ctx");
    if (!shared) shared = units[0]->context()->lanes();
    require<InvalidArgument>(
        units[0]->context()->lanes()->same_ranks(*shared), [&] {
          return str("share_comm_ctx: unit '", units[0]->name(),
                     "' is on another mesh than the first module's.");
        });
    units[0]->context()->set_lanes(shared);
  }
}

void set_post_optim_event(torch::nn::Module& module, StreamEvent& event) {
  for (const auto& unit :
       units_for(module, Recurse::yes, "set_post_optim_event")) {
    const ShardLanes& lanes = *unit->lanes();
    event.block(lanes.gather_stream);
    event.block(current_stream(lanes.device));
  }
}

void set_custom_all_gather(torch::nn::Module& module,
                           std::shared_ptr<AllGather> all_gather) {
  change_groups(
      own_sharded_units(module, "set_custom_all_gather"),
      [&](ParameterGroup& group) { group.set_all_gather(all_gather); });
}

void set_custom_reduce_scatter(torch::nn::Module& module,
                               std::shared_ptr<ReduceScatter> reduce_scatter) {
  change_groups(
      own_sharded_units(module, "set_custom_reduce_scatter"),
      [&](ParameterGroup& group) { group.set_reduce_scatter(reduce_scatter); });
}

}  // namespace tessera
