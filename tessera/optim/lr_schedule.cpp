#include "tessera/optim/lr_schedule.h"

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"

namespace tessera {

LrSchedule::LrSchedule(torch::optim::Optimizer& optimizer,
                       const LrScheduleOptions& options,
                       std::vector<double> peak_lrs)
    : optimizer_(&optimizer),
      options_(options),
      peak_lrs_(std::move(peak_lrs)) {
  validate(options_);
  const auto is_rate = [](double rate) { return rate >= 0; };
  require(!peak_lrs_.empty() && std::ranges::all_of(peak_lrs_, is_rate), [] {
    return str(
        "LrSchedule: no peak rate, or one that is not 0 or more; give "
        "one for all parameter groups, or one for each.");
  });
}

void LrSchedule::apply(int64_t step) {
  auto& groups = optimizer_->param_groups();
  require<InvalidState>(
      peak_lrs_.size() == 1 || peak_lrs_.size() == groups.size(), [&] {
        return str(
            "LrSchedule::apply: the optimizer has ", groups.size(),
            " parameter groups, the schedule ", peak_lrs_.size(),
            " peak rates; make a schedule with one rate for each group.");
      });
  for (size_t group = 0; group < groups.size(); ++group) {
    groups[group].options().set_lr(lr(step, group));
  }
}

double LrSchedule::lr(int64_t step, size_t group) const {
  const bool one_for_all = peak_lrs_.size() == 1;
  require(one_for_all || group < peak_lrs_.size(), [&] {
    return str("LrSchedule::lr: no peak rate for parameter group ", group,
               " among ", peak_lrs_.size(), "; count from 0.");
  });
  return peak_lrs_[one_for_all ? 0 : group] * lr_factor(options_, step);
}

}  // namespace tessera
