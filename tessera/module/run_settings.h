// What must be as it was when a region runs a second time: random numbers and
// autocast.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/module/recompute.h"

namespace tessera {

/// As it is now, for the devices of `inputs` and the CPU.
class RunSettings {
 public:
  RunSettings(const TensorVector& inputs, RecomputeOptions::Random random);

  /// The same devices and generators, as they are now.
  [[nodiscard]] RunSettings now() const;

  void apply() const;

 private:
  struct Random {
    at::Generator generator;
    at::Tensor state;
    std::optional<uint64_t> captured;  // the position inside a CUDA graph
  };
  struct Autocast {
    c10::DeviceType device;
    bool enabled;
    c10::ScalarType dtype;
  };

  RunSettings() = default;

  std::vector<Random> random_;
  std::vector<Autocast> autocast_;
};

/// While it lives, all is as `settings` say.
class RunSettingsScope {
 public:
  explicit RunSettingsScope(const RunSettings& settings);
  ~RunSettingsScope();
  RunSettingsScope(const RunSettingsScope&) = delete;
  RunSettingsScope& operator=(const RunSettingsScope&) = delete;

 private:
  const RunSettings before_;
};

}  // namespace tessera
