// How one value of a config becomes a C++ value of the type that is wanted.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tessera/train/config_value.h"

namespace tessera::train {

/// Which numbers a key takes. Never nan or infinity.
struct Limits {
  double min = std::numeric_limits<double>::lowest();
  double max = std::numeric_limits<double>::max();
  double above = -std::numeric_limits<double>::infinity();  // not itself
};

/// Puts `value`, which is that of `entry` or an element of it, into `field`.
/// Errors: InvalidArgument that says what is expected and what was got, when
/// the type is another or a number is outside the limits.
void take(const ConfigEntry& entry, const ConfigValue& value, const Limits&,
          bool& field);
void take(const ConfigEntry& entry, const ConfigValue& value,
          const Limits& limits, int64_t& field);
/// Takes an integer too.
void take(const ConfigEntry& entry, const ConfigValue& value,
          const Limits& limits, double& field);
void take(const ConfigEntry& entry, const ConfigValue& value, const Limits&,
          std::string& field);

/// The elements; an error when `value` is no array.
[[nodiscard]] const ConfigArray& array_of(const ConfigEntry& entry,
                                          const ConfigValue& value);

template <class T>
void take(const ConfigEntry& entry, const ConfigValue& value,
          const Limits& limits, std::vector<T>& field) {
  const ConfigArray& array = array_of(entry, value);
  std::vector<T> elements(array.size());
  for (size_t i = 0; i < elements.size(); ++i) {
    take(entry, array[i], limits, elements[i]);
  }
  field = std::move(elements);
}

}  // namespace tessera::train
