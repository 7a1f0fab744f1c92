#include "tessera/module/run_settings.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <mutex>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/module/captured_random.h"

namespace tessera {

namespace {

at::Tensor state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

std::vector<c10::Device> devices_of(const TensorVector& tensors) {
  std::vector<c10::Device> devices = {c10::kCPU};
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.is_meta()) continue;
    if (std::find(devices.begin(), devices.end(), tensor.device()) ==
        devices.end()) {
      devices.push_back(tensor.device());
    }
  }
  return devices;
}

}  // namespace

RunSettings::RunSettings(const TensorVector& inputs,
                         RecomputeOptions::Random random) {
  for (const c10::Device device : devices_of(inputs)) {
    autocast_.push_back({device.type(),
                         at::autocast::is_autocast_enabled(device.type()),
                         at::autocast::get_autocast_dtype(device.type())});
    if (random == RecomputeOptions::Random::none) continue;
    const at::Generator generator =
        at::globalContext().defaultGenerator(device);
    random_.push_back(
        {generator, state_of(generator), captured_offset(generator)});
  }
}

RunSettings RunSettings::now() const {
  RunSettings settings;
  for (const Autocast& autocast : autocast_) {
    settings.autocast_.push_back(
        {autocast.device, at::autocast::is_autocast_enabled(autocast.device),
         at::autocast::get_autocast_dtype(autocast.device)});
  }
  for (const Random& random : random_) {
    settings.random_.push_back({random.generator, state_of(random.generator),
                                captured_offset(random.generator)});
  }
  return settings;
}

void RunSettings::apply() const {
  for (const Autocast& autocast : autocast_) {
    at::autocast::set_autocast_enabled(autocast.device, autocast.enabled);
    at::autocast::set_autocast_dtype(autocast.device, autocast.dtype);
  }
  for (const Random& random : random_) {
    at::Generator generator = random.generator;
    const std::lock_guard lock(generator.mutex());
    generator.set_state(random.state);
    if (random.captured) set_captured_offset(generator, *random.captured);
  }
}

RunSettingsScope::RunSettingsScope(const RunSettings& settings)
    : before_(settings.now()) {
  settings.apply();
}

RunSettingsScope::~RunSettingsScope() {
  try {
    before_.apply();
  } catch (const std::exception& error) {
    log_warning(str("recompute: the random state could not be put back: ",
                    error.what()));
  }
}

}  // namespace tessera
