#include "tessera/optim/device_rates.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <limits>

#include "tessera/base/error.h"
#include "tessera/device/capture.h"

namespace tessera {

void DeviceRates::write(Rate& rate, double value) {
  if (rate.value == value) return;
  require<InvalidState>(!capturing(rate.tensor.device()), [&] {
    return str("AdamW: a learning rate became ", value,
               " while the step was captured in a graph, which would repeat "
               "that write. Set rates before the step.");
  });
  at::NoGradGuard no_grad;
  rate.tensor.fill_(value);
  rate.value = value;
}

at::Tensor DeviceRates::of(size_t group, c10::Device device, double rate) {
  for (Rate& own : rates_) {
    if (own.group != group || own.tensor.device() != device) continue;
    write(own, rate);
    return own.tensor;
  }
  rates_.push_back({group, at::empty({}, at::device(device).dtype(at::kFloat)),
                    std::numeric_limits<double>::quiet_NaN()});
  write(rates_.back(), rate);
  return rates_.back().tensor;
}

void DeviceRates::set(size_t group, double rate) {
  for (Rate& own : rates_) {
    if (own.group == group) write(own, rate);
  }
}

}  // namespace tessera
