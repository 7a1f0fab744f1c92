#include "benchmarks/step_bench/trace.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <set>

namespace step_bench {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

StepRange::StepRange(int64_t step) : range_(at::RecordScope::USER_SCOPE) {
  if (range_.isActive()) {
    range_.before("ProfilerStep#" + std::to_string(step));
  }
}

void start_trace(c10::Device device) {
  std::set<ActivityType> activities = {ActivityType::CPU};
  if (device.is_cuda()) activities.insert(ActivityType::CUDA);
  const torch::profiler::impl::ProfilerConfig config(
      torch::profiler::impl::ProfilerState::KINETO);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(
      config, activities,
      {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION,
       at::RecordScope::USER_SCOPE});
}

void write_trace(const std::string& path) {
  profiler::disableProfiler()->save(path);
}

}  // namespace step_bench
