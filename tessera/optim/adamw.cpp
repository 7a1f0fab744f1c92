#include "tessera/optim/adamw.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <string>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/optim/adamw_checks.h"
#include "tessera/optim/clip_grad_norm.h"
#include "tessera/optim/flat_runs.h"
#include "tessera/optim/fused_update.h"

namespace tessera {
namespace {

using torch::optim::AdamWOptions;
using torch::optim::OptimizerParamGroup;

at::Tensor zeros_for(const at::Tensor& parameter) {
  at::NoGradGuard no_grad;
  return at::zeros_like(parameter);
}

at::Tensor piece_of(const at::Tensor& flat, const at::Tensor& shard,
                    const Spread& spread) {
  at::NoGradGuard no_grad;
  return flat.narrow(0, spread.piece.offset, spread.piece.numel)
      .as_strided(shard.sizes(), shard.strides());
}

size_t index_in(std::vector<StepHandle>& counts, const StepHandle& count) {
  auto at = std::find(counts.begin(), counts.end(), count);
  if (at == counts.end()) at = counts.insert(at, count);
  return static_cast<size_t>(at - counts.begin());
}

// The fused kernels leave it as it is.
void bump_version(const at::Tensor& parameter) {
  if (parameter.is_inference()) return;
  parameter.unsafeGetTensorImpl()->bump_version();
}

}  // namespace

/// A parameter that has a gradient, in one step.
struct AdamW::Member {
  at::Tensor parameter;
  const Spread* spread;
  Slot* slot;
};

AdamW::AdamW(const std::vector<OptimizerParamGroup>& param_groups,
             AdamWOptions defaults)
    : Optimizer(param_groups, std::make_unique<AdamWOptions>(defaults)) {
  adamw::validate(defaults);
  for (const auto& group : this->param_groups())
    adamw::validate(adamw::options_of(group));
}

AdamW::AdamW(std::vector<at::Tensor> parameters, AdamWOptions defaults)
    : AdamW({OptimizerParamGroup(std::move(parameters))}, defaults) {}

AdamW::~AdamW() = default;

AdamW::Moments& AdamW::flat_moments(const std::shared_ptr<FlatMaster>& master,
                                    const AdamWOptions& options) {
  auto [at, is_new] = flat_.try_emplace(master.get());
  if (is_new) at->second.master = master;
  ensure_moments(at->second.moments, master->data, options);
  return at->second.moments;
}

void AdamW::ensure_moments(Moments& moments, const at::Tensor& parameter,
                           const AdamWOptions& options) {
  if (!moments.exp_avg.defined()) {
    moments.exp_avg = zeros_for(parameter);
    moments.exp_avg_sq = zeros_for(parameter);
  }
  if (options.amsgrad() && !moments.max_exp_avg_sq.defined()) {
    moments.max_exp_avg_sq = zeros_for(parameter);
  }
  require<InvalidState>(adamw::fits(moments.exp_avg, parameter), [&] {
    return tessera::str(
        "AdamW: ", adamw::name_of(parameter), " is ", parameter.dtype().name(),
        " on ", parameter.device(), ", strides ", parameter.strides(),
        ", but its state is ", moments.exp_avg.sizes(), " ",
        moments.exp_avg.dtype().name(), " on ", moments.exp_avg.device(),
        ", strides ", moments.exp_avg.strides(),
        ". It changed after its first step; make a new optimizer.");
  });
}

AdamW::Slot& AdamW::slot_of(const at::Tensor& parameter,
                            const AdamWOptions& options) {
  Slot& slot = slots_[parameter.unsafeGetTensorImpl()];
  const Spread* spread = spread_of(parameter);
  if (!spread) {
    ensure_moments(slot.moments, parameter, options);
    return slot;
  }
  const Moments& flat = flat_moments(spread->master, options);
  if (!slot.moments.exp_avg.defined()) {
    slot.moments.exp_avg = piece_of(flat.exp_avg, parameter, *spread);
    slot.moments.exp_avg_sq = piece_of(flat.exp_avg_sq, parameter, *spread);
  }
  if (options.amsgrad() && !slot.moments.max_exp_avg_sq.defined()) {
    slot.moments.max_exp_avg_sq =
        piece_of(flat.max_exp_avg_sq, parameter, *spread);
  }
  return slot;
}

std::vector<AdamW::Member> AdamW::members_of(const OptimizerParamGroup& group,
                                             const Chosen* chosen) {
  const AdamWOptions& options = adamw::options_of(group);
  std::vector<Member> members;
  for (const at::Tensor& parameter : group.params()) {
    if (!parameter.grad().defined()) continue;
    if (chosen && !chosen->contains(parameter.unsafeGetTensorImpl())) continue;
    adamw::check_kind(parameter, parameter.grad());
    Slot& slot = slot_of(parameter, options);
    // A tied parameter stands in parameters() once for each owner, and is
    // stepped once.
    if (slot.round == round_) continue;
    slot.round = round_;
    members.push_back({parameter, spread_of(parameter), &slot});
  }
  return members;
}

at::Tensor AdamW::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    at::AutoGradMode gradients_on(true);
    loss = closure();
  }
  step_unless({});
  return loss;
}

void AdamW::step_only(const std::vector<at::Tensor>& parameters) {
  Chosen chosen;
  for (const at::Tensor& parameter : parameters) {
    chosen.insert(parameter.unsafeGetTensorImpl());
  }
  step_these(&chosen, {});
}

void AdamW::step_clipped(const at::Tensor& total_norm, double max_norm,
                         const at::Tensor& skip) {
  at::NoGradGuard no_grad;
  step_these(nullptr,
             {skip, clip_factor(total_norm, max_norm, "AdamW::step_clipped")});
}

void AdamW::step_these(const Chosen* chosen, const UpdateTerms& terms) {
  at::NoGradGuard no_grad;
  ++round_;
  std::vector<std::vector<Member>> members;
  std::vector<Stepper> steppers;
  KeptCopies copies;
  for (const auto& group : param_groups_) {
    members.push_back(members_of(group, chosen));
    for (const Member& member : members.back()) {
      if (member.spread) copies.look_at(member.spread->master);
      steppers.push_back({&member.slot->steps, member.parameter.device()});
    }
  }
  assigner_.forget();
  if (tessera::advance(steppers, terms.skip)) ++state_version_;
  for (size_t i = 0; i < members.size(); ++i) {
    update(members[i], i, terms, copies);
  }
  copies.note_current();
}

void AdamW::write_rates() {
  for (size_t i = 0; i < param_groups_.size(); ++i) {
    rates_.set(i, adamw::options_of(param_groups_[i]).lr());
  }
}

void AdamW::update(const std::vector<Member>& members, size_t group,
                   const UpdateTerms& terms, KeptCopies& copies) {
  const AdamWOptions& options = adamw::options_of(param_groups_[group]);
  FlatRuns runs;
  FusedUpdate fused;
  std::vector<StepHandle> counts;  // a run's kind is an index into it
  auto max_of = [&](const Moments& moments) {
    return options.amsgrad() ? moments.max_exp_avg_sq : at::Tensor();
  };
  for (const Member& member : members) {
    const auto& [steps, moments, round] = *member.slot;
    const size_t kind = index_in(counts, steps);
    const at::Tensor& gradient = member.parameter.grad();
    if (member.spread && runs.add(*member.spread, gradient, kind)) continue;
    if (member.spread) copies.lose(*member.spread->master);
    fused.add({local(member.parameter), local(gradient), moments.exp_avg,
               moments.exp_avg_sq, max_of(moments), steps->value});
  }
  // Without eps, the zeros of a gap would become 0 / 0.
  const Gaps gaps = options.eps() > 0 ? Gaps::bridged : Gaps::apart;
  for (const FlatRun& run : runs.join(gaps)) {
    const Moments& flat = flat_.at(run.master.get()).moments;
    const at::Tensor max = max_of(flat);
    fused.add({run.of(run.master->data), run.of(run.flat_gradient),
               run.of(flat.exp_avg), run.of(flat.exp_avg_sq),
               max.defined() ? run.of(max) : max, counts[run.kind]->value,
               copies.of(run)});
  }
  const auto rate_on = [&](c10::Device device) {
    return rates_.of(group, device, options.lr());
  };
  fused.run(options, rate_on, terms);
  // A shard's counter is also its master's and its neighbours': gathered
  // copies of the unit are stale now, on ranks with empty shards too.
  for (const Member& member : members) bump_version(member.parameter);
}

}  // namespace tessera
