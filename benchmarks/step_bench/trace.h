// A Kineto trace, for chrome://tracing, Perfetto and benchmarks/overlap.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace step_bench {

/// A range "ProfilerStep#N" in the trace while it lives.
class StepRange {
 public:
  explicit StepRange(int64_t step);

 private:
  at::RecordFunction range_;
};

/// From here to `write_trace`, what this process does is noted.
void start_trace(c10::Device device);
void write_trace(const std::string& path);

}  // namespace step_bench
