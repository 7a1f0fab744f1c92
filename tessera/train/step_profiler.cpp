#include "tessera/train/step_profiler.h"

#include <ATen/DeviceAccelerator.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <filesystem>
#include <set>

#include "tessera/device/memory_history.h"
#include "tessera/train/failure.h"

namespace tessera::train {

void start_trace(c10::Device device) {
  using torch::profiler::impl::ActivityType;
  using torch::profiler::impl::ProfilerConfig;
  using torch::profiler::impl::ProfilerState;
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

void write_trace(c10::Device device, const std::string& path) {
  if (device.is_cuda()) at::accelerator::synchronizeDevice(device.index());
  torch::autograd::profiler::disableProfiler()->save(path);
}

std::string step_label(int64_t step) { return str("ProfilerStep#", step); }

StepProfiler::StepProfiler(const TrainConfig& config, const World& world)
    : config_(config.profile),
      device_(world.device()),
      path_(str(config.output.folder, "/trace-rank-", world.rank(), ".json")),
      memory_path_(str(config.output.folder, "/memory-rank-", world.rank(),
                       ".pickle")) {
  require(!config_.memory || device_.is_cuda(), ExitCode::wrong_config, [&] {
    return str("profile.memory is set, but the run is on a ", device_.str(),
               ", and only a GPU's allocator keeps a history.");
  });
}

StepProfiler::~StepProfiler() {
  if (!running_) return;
  try {
    step_.reset();
    if (config_.memory) drop_memory_history();
    torch::autograd::profiler::disableProfiler();
  } catch (const std::exception&) {
    // The run has failed already, and says why.
  }
}

void StepProfiler::begin(int64_t step) {
  if (step < config_.first || step > config_.last) return;
  if (!running_) {
    if (config_.memory) start_memory_history(device_);
    start_trace(device_);
  }
  running_ = true;
  step_.emplace(step_label(step).c_str());
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
  running_ = false;
  write_trace(device_, path_);
  std::error_code error;
  require(std::filesystem::file_size(path_, error) > 0 && !error,
          ExitCode::cannot_write, [&] {
            return str("the trace of steps ", config_.first, " to ",
                       config_.last, " could not be written to '", path_, "'.");
          });
  if (config_.memory) write_memory();
}

void StepProfiler::write_memory() const {
  try {
    write_memory_history(memory_path_);
  } catch (const InvalidState& error) {
    throw Failure(ExitCode::cannot_write, error.what());
  }
}

}  // namespace tessera::train
