#include "tessera/optim/step_count.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/zeros.h>

#include <functional>
#include <map>
#include <unordered_map>
#include <utility>

namespace tessera {
namespace {

/// Steppers that hold the same count, or are new on the same device.
struct Cohort {
  StepHandle count;
  at::Device device;
  std::vector<StepHandle*> handles;
};

std::vector<Cohort> by_count(const std::vector<Stepper>& steppers) {
  std::vector<Cohort> cohorts;
  std::map<std::pair<const StepCount*, size_t>, size_t> places;
  for (const Stepper& stepper : steppers) {
    auto [at, is_new] = places.try_emplace(
        {stepper.handle->get(), std::hash<at::Device>{}(stepper.device)},
        cohorts.size());
    if (is_new) cohorts.push_back({*stepper.handle, stepper.device, {}});
    cohorts[at->second].handles.push_back(stepper.handle);
  }
  return cohorts;
}

at::Tensor new_count(at::Device device) {
  return at::zeros({}, at::device(device).dtype(at::kFloat));
}

// All of a count's holders step: it stays theirs. Otherwise they leave it, and
// this returns true.
bool settle(Cohort& cohort) {
  const size_t num = cohort.handles.size();
  if (cohort.count && cohort.count->num_holders == num) return false;
  at::Tensor value =
      cohort.count ? cohort.count->value.clone() : new_count(cohort.device);
  if (cohort.count) cohort.count->num_holders -= num;
  cohort.count = std::make_shared<StepCount>(StepCount{std::move(value), num});
  for (StepHandle* handle : cohort.handles) *handle = cohort.count;
  return true;
}

}  // namespace

bool advance(const std::vector<Stepper>& steppers, const at::Tensor& skip) {
  at::NoGradGuard no_grad;
  bool moved = false;
  std::unordered_map<at::Device, std::vector<at::Tensor>> values;
  for (Cohort& cohort : by_count(steppers)) {
    if (settle(cohort)) moved = true;
    values[cohort.device].push_back(cohort.count->value);
  }
  for (auto& [device, list] : values) {
    if (skip.defined()) {
      at::_foreach_add_(list, 1 - skip.to(device, at::kFloat));
    } else {
      at::_foreach_add_(list, 1.0);
    }
  }
  return moved;
}

void StepAssigner::assign(StepHandle& handle, double num_steps,
                          at::Device device) {
  if (handle) --handle->num_holders;
  for (const Given& given : given_) {
    if (given.num_steps != num_steps || given.device != device) continue;
    handle = given.count;
    ++handle->num_holders;
    return;
  }
  at::NoGradGuard no_grad;
  handle = std::make_shared<StepCount>(StepCount{new_count(device), 1});
  handle->value.fill_(num_steps);
  given_.push_back({handle, num_steps, device});
}

}  // namespace tessera
