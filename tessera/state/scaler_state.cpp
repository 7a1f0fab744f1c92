#include "tessera/state/scaler_state.h"

namespace tessera {
namespace {

Value to_value(const GradScalerState& state) {
  return Value::dict({{"scale", state.scale},
                      {"growth_factor", state.growth_factor},
                      {"backoff_factor", state.backoff_factor},
                      {"growth_interval", state.growth_interval},
                      {"_growth_tracker", state.growth_tracker}});
}

GradScalerState from_value(const Value& value) {
  return {.scale = value.at("scale").as_double(),
          .growth_factor = value.at("growth_factor").as_double(),
          .backoff_factor = value.at("backoff_factor").as_double(),
          .growth_interval = value.at("growth_interval").as_int(),
          .growth_tracker = value.at("_growth_tracker").as_int()};
}

}  // namespace

std::shared_ptr<Stateful> scaler_state(GradScaler& scaler) {
  return std::make_shared<ValueState>(
      [&scaler] { return to_value(scaler.state_dict()); },
      [&scaler](const Value& value) {
        scaler.load_state_dict(from_value(value));
      });
}

}  // namespace tessera
