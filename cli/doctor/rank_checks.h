// What the ranks of a job find when they work together. Every rank calls each
// check; all get the same verdict.
#pragma once

#include <vector>

#include "cli/doctor/report.h"
#include "tessera/comm/world.h"

namespace tessera::cli::doctor {

inline constexpr int kExitRanks = 30;
inline constexpr int kExitBandwidth = 31;
inline constexpr int kExitStep = 32;
inline constexpr int kExitRules = 33;

/// Where the ranks are: a device for each, and clocks that agree.
[[nodiscard]] Check check_ranks(const World& world);

/// Bytes a second of the three collectives that training uses.
[[nodiscard]] Check check_bandwidth(const World& world);

/// Two steps of a small model, sharded, against one process.
[[nodiscard]] Check check_step(const World& world);

/// The usual mistakes, made on purpose: each must be refused.
[[nodiscard]] std::vector<Check> check_rules(const World& world);

}  // namespace tessera::cli::doctor
