#include "tessera/optim/zero_redundancy_optimizer_base.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <optional>
#include <string>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/comm/object_collectives.h"
#include "tessera/comm/process_group.h"
#include "tessera/mesh/group_over.h"
#include "tessera/optim/optimizer_archive.h"
#include "tessera/optim/parameter_agreement.h"

namespace tessera {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamGroup;
using Groups = std::vector<OptimizerParamGroup>;

constexpr const char* kWrapper = "ZeroRedundancyOptimizer";

const Groups& agreed(const Groups& groups, const OptimizerOptions& defaults,
                     ZeroOptions& options) {
  options.group = group_over(options.mesh, options.group, kWrapper, "ZeRO");
  agree_on_parameters(options.group, groups, defaults,
                      options.parameters_as_bucket_view);
  return groups;
}

// All ranks must mean the same one.
void check_target(int to, const distributed::ProcessGroup& group) {
  const auto all = distributed::all_gather_object(str(to), group);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    require<InvalidArgument>(all[rank] == all[0], [&] {
      return str(kWrapper, "::consolidate_state_dict: `to` is ", all[0],
                 " on rank ", group.world_rank(0), " and ", all[rank],
                 " on rank ", group.world_rank(static_cast<int>(rank)),
                 ". Give the same on all ranks.");
    });
  }
  require<InvalidArgument>(to >= 0 && to < group.size(), [&] {
    return str(kWrapper, "::consolidate_state_dict: `to` is ", to,
               "; expected a rank of the group, 0 to ", group.size() - 1, ".");
  });
}

// Takes the gradients of frozen parameters away while the others are stepped.
class HiddenGradients {
 public:
  explicit HiddenGradients(const Groups& groups) {
    for (const OptimizerParamGroup& group : groups) {
      for (const at::Tensor& parameter : group.params()) {
        if (parameter.requires_grad() || !parameter.grad().defined()) continue;
        hidden_.emplace_back(parameter, parameter.grad());
        parameter.mutable_grad() = at::Tensor();
      }
    }
  }
  ~HiddenGradients() {
    for (auto& [parameter, gradient] : hidden_) {
      parameter.mutable_grad() = std::move(gradient);
    }
  }
  HiddenGradients(const HiddenGradients&) = delete;
  HiddenGradients& operator=(const HiddenGradients&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> hidden_;
};

}  // namespace

ZeroRedundancyOptimizerBase::ZeroRedundancyOptimizerBase(
    const Groups& groups, std::unique_ptr<OptimizerOptions> defaults,
    Makers makers, ZeroOptions options)
    : Optimizer(agreed(groups, *defaults, options), defaults->clone()),
      options_(std::move(options)),
      makers_(std::move(makers)) {
  divided_ = DividedGroups(param_groups_, group().size());
  local_ = makers_.local(groups_of(group().rank()));
  build_broadcast();
}

ZeroRedundancyOptimizerBase::~ZeroRedundancyOptimizerBase() = default;

int ZeroRedundancyOptimizerBase::owner_of(const at::Tensor& parameter) const {
  return divided_.owner_of(parameter);
}

bool ZeroRedundancyOptimizerBase::owns(const at::Tensor& parameter) const {
  return owner_of(parameter) == group().rank();
}

Groups ZeroRedundancyOptimizerBase::groups_of(int rank) const {
  return divided_.part_of(rank, param_groups_);
}

void ZeroRedundancyOptimizerBase::add_param_group(
    const OptimizerParamGroup& added) {
  Groups all = param_groups_;
  all.push_back(added);
  agree_on_parameters(group(), all, *defaults_,
                      options_.parameters_as_bucket_view);
  Optimizer::add_param_group(added);
  consolidated_.reset();
  divided_ = DividedGroups(param_groups_, group().size());
  local_->add_param_group(groups_of(group().rank()).back());
  build_broadcast();
}

// --- the step ----------------------------------------------------------------

void ZeroRedundancyOptimizerBase::build_broadcast() {
  broadcast_.reset();  // its buckets end as the parameters leave them
  broadcast_ = std::make_unique<ParameterBroadcast>(
      group(), divided_.parameters(), options_.parameters_as_bucket_view);
}

void ZeroRedundancyOptimizerBase::follow_freezing() {
  if (!divided_.refresh_trainable()) return;
  log_warning(kWrapper,
              ": parameters were frozen or unfrozen since the last step; from "
              "now on those that are trained are sent. All ranks must do so "
              "alike.");
  build_broadcast();
}

void ZeroRedundancyOptimizerBase::sync_options() {
  for (size_t i = 0; i < param_groups_.size(); ++i) {
    local_->param_groups()[i].set_options(param_groups_[i].options().clone());
  }
}

Optimizer& ZeroRedundancyOptimizerBase::local_optimizer() {
  sync_options();
  return *local_;
}

at::Tensor ZeroRedundancyOptimizerBase::step(LossClosure closure) {
  require<InvalidState>(divided_.are(param_groups_), [] {
    return str(kWrapper,
               "::step: param_groups() has other parameters than were divided "
               "among the ranks. Add them by add_param_group of "
               "ZeroRedundancyOptimizer, on all ranks.");
  });
  at::Tensor loss;
  if (closure != nullptr) {
    const at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  if (session() != nullptr) session()->note_step(*this);
  step_and_send();
  return loss;
}

void ZeroRedundancyOptimizerBase::step_and_send() {
  follow_freezing();
  consolidated_.reset();
  {
    const HiddenGradients hidden(local_->param_groups());
    local_optimizer().step();
  }
  broadcast_->run();
}

c10::Device ZeroRedundancyOptimizerBase::join_device() const {
  return divided_.parameters().front().tensor.device();
}

// --- state -------------------------------------------------------------------

void ZeroRedundancyOptimizerBase::consolidate_state_dict(int to) {
  check_target(to, group());
  consolidated_.reset();
  const std::string own = archive_of(local_optimizer());
  if (group().rank() != to) {
    distributed::send_object_list({own}, to, group());
    return;
  }
  auto all = makers_.archive(param_groups_);
  for (int rank = 0; rank < group().size(); ++rank) {
    const auto part = makers_.archive(groups_of(rank));
    load_archive(
        *part,
        rank == to ? own : distributed::recv_object_list(rank, group()).front(),
        c10::kCPU);
    for (auto& [parameter, state] : part->state()) {
      all->state()[parameter] = std::move(state);
    }
  }
  consolidated_ = std::move(all);
}

void ZeroRedundancyOptimizerBase::save(
    torch::serialize::OutputArchive& archive) const {
  require<InvalidState>(consolidated_ != nullptr, [&] {
    return str(kWrapper,
               "::save: the state is divided among ranks, and was not brought "
               "to this one since the last step. Call consolidate_state_dict(",
               group().rank(), ") on all ranks before, or save a checkpoint.");
  });
  consolidated_->save(archive);
}

void ZeroRedundancyOptimizerBase::load(
    torch::serialize::InputArchive& archive) {
  const auto all = makers_.archive(param_groups_);
  all->load(archive);
  for (size_t i = 0; i < param_groups_.size(); ++i) {
    param_groups_[i].set_options(all->param_groups()[i].options().clone());
  }
  consolidated_.reset();
  const auto part = makers_.archive(groups_of(group().rank()));
  for (const OptimizerParamGroup& one : part->param_groups()) {
    for (const at::Tensor& parameter : one.params()) {
      const auto found = all->state().find(parameter.unsafeGetTensorImpl());
      if (found == all->state().end()) continue;
      part->state()[found->first] = copy_on(*found->second, parameter.device());
    }
  }
  load_archive(local_optimizer(), archive_of(*part), std::nullopt);
}

}  // namespace tessera
