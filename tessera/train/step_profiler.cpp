#include "tessera/train/step_profiler.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <filesystem>
#include <set>

#include "tessera/train/failure.h"

namespace tessera::train {
namespace {

using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

void start(c10::Device device) {
  std::set<ActivityType> activities = {ActivityType::CPU};
  if (device.is_cuda()) activities.insert(ActivityType::CUDA);
  const ProfilerConfig config(ProfilerState::KINETO);
  torch::autograd::profiler::prepareProfiler(config, activities);
  // The second scope is that of autograd's threads.
  torch::autograd::profiler::enableProfiler(
      config, activities,
      {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION,
       at::RecordScope::USER_SCOPE});
}

}  // namespace

struct StepProfiler::Range {
  explicit Range(int64_t step) : range(at::RecordScope::USER_SCOPE) {
    if (range.isActive()) range.before(str("ProfilerStep#", step));
  }
  at::RecordFunction range;
};

StepProfiler::StepProfiler(const TrainConfig& config, const World& world)
    : config_(config.profile),
      device_(world.device()),
      path_(str(config.output.folder, "/trace-rank-", world.rank(), ".json")) {}

StepProfiler::~StepProfiler() {
  if (!running_) return;
  try {
    step_.reset();
    torch::autograd::profiler::disableProfiler();
  } catch (const std::exception&) {
    // The run has failed already, and says why.
  }
}

void StepProfiler::begin(int64_t step) {
  if (step < config_.first || step > config_.last) return;
  if (!running_) start(device_);
  running_ = true;
  step_ = std::make_unique<Range>(step);
}

void StepProfiler::end(int64_t step) {
  step_.reset();
  if (running_ && step >= config_.last) write();
}

void StepProfiler::finish() {
  step_.reset();
  if (running_) write();
}

void StepProfiler::write() {
  if (device_.is_cuda()) at::accelerator::synchronizeDevice(device_.index());
  const auto trace = torch::autograd::profiler::disableProfiler();
  running_ = false;
  trace->save(path_);
  std::error_code error;
  require(std::filesystem::file_size(path_, error) > 0 && !error,
          ExitCode::cannot_write, [&] {
            return str("the trace of steps ", config_.first, " to ",
                       config_.last, " could not be written to '", path_, "'.");
          });
}

}  // namespace tessera::train
