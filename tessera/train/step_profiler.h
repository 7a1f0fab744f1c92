// A Kineto trace of some steps of a run, for chrome://tracing and Perfetto.
//
//   StepProfiler profiler(config, world);  // config.profile, config.output
//   for (int64_t step = 1; ...; ++step) {
//     profiler.begin(step);
//     ...
//     profiler.end(step);
//   }
//
// With config.profile.memory there is a history of the GPU's allocator, too
// (device/memory_history.h): memory-rank-0.pickle of the same folder.
//
// Each step is a range "ProfilerStep#10"; gathers and reductions of units have
// the names that PyTorch's FSDP2 gives them (shard/trace_range.h).
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

#include "tessera/comm/world.h"
#include "tessera/shard/trace_range.h"
#include "tessera/train/train_config.h"

namespace tessera::train {

/// From here to `write_trace`, what this process does is noted.
void start_trace(c10::Device device);
/// Waits for the device, ends the trace and writes it as Chrome JSON.
void write_trace(c10::Device device, const std::string& path);
/// The name of a step's range in a trace.
[[nodiscard]] std::string step_label(int64_t step);

class StepProfiler {
 public:
  /// The file is trace-rank-0.json of the run's folder, for rank 0.
  /// Errors: Failure (wrong_config), when it is to be of an allocator that is no
  /// GPU's.
  StepProfiler(const TrainConfig& config, const World& world);
  /// Drops a trace that has begun and not ended.
  ~StepProfiler();
  StepProfiler(const StepProfiler&) = delete;
  StepProfiler& operator=(const StepProfiler&) = delete;

  /// The trace begins here when `step` is the first of its steps.
  void begin(int64_t step);
  /// The file is written here when `step` is the last of its steps.
  /// Errors: Failure (cannot_write).
  void end(int64_t step);
  /// The file, when the run ends before the last of its steps.
  void finish();

 private:
  void write();
  void write_memory() const;

  const ProfileConfig config_;
  const c10::Device device_;
  const std::string path_;
  const std::string memory_path_;
  std::optional<TraceRange> step_;
  bool running_ = false;
};

}  // namespace tessera::train
