// The flight records of a job's ranks, lined up: who is missing which
// collective.
//
//   dp/gather, ranks 0 1 2: the first that is not complete is
//   all_gather #17, unit 'layers.1', forward, aten::mm, 4096 BFloat16
//       rank 0  waiting 3.0 s
//     > rank 1  missing; its last is all_gather #16, unit 'layers.0', ...
//       rank 2  waiting 2.9 s
//   Rank 1 is missing all_gather #17 of unit 'layers.1' on 'dp/gather'.
//
// Pure.
#pragma once

#include <span>
#include <string>

#include "tessera/comm/flight_record.h"

namespace tessera {

/// `records` are of one job, one for each rank that wrote one.
[[nodiscard]] std::string flight_report(std::span<const FlightRecord> records);

}  // namespace tessera
