// Units by their names.
#pragma once

#include <torch/nn/module.h>

#include <string>

#include "tessera/base/error.h"
#include "tessera/shard/find_units.h"
#include "tessera/shard/unit.h"

namespace tessera::test {

inline Unit& unit_named(torch::nn::Module& model, const std::string& name) {
  for (const auto& unit : units_below(model)) {
    if (unit->name() == name) return *unit;
  }
  throw InvalidArgument(str("no unit ", name));
}

}  // namespace tessera::test
