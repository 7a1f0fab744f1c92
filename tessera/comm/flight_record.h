// The last collectives of one rank, as a file that is written when its job
// fails: what `tessera flight` lines up with those of the other ranks.
//
//   {"version": 2, "rank": 0, "world_size": 3, "cause": "...",
//    "written": 1764325234.5,
//    "groups": [{"name": "dp/gather", "ranks": [0, 1, 2]}],
//    "collectives": [{"sequence": 41, "communicator": "dp/gather",
//      "index": 17, "kind": "all_gather", "unit": "layers.1",
//      "phase": "forward", "operator": "aten::mm", "numel": 4096,
//      "dtype": "BFloat16", "bytes": 8192, "reduction": "", "root": -1,
//      "state": "completed", "called": 1764325231.2,
//      "waited": 1764325231.3, "ended": 1764325231.9}]}
//
// `state` is issued, waiting or completed. The times, in seconds since 1970,
// are those of the call, of this rank's wait for it (0: it has not waited), and
// of its end (0: not yet). On CUDA the end is that of the host's wait: what it
// has put on a stream may still run. `index` counts the calls on a
// communicator. Torch-free.
#pragma once

#include <chrono>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "tessera/comm/collective_entry.h"

namespace tessera {

struct FlightGroup {
  std::string name;
  std::vector<int> ranks;
  bool operator==(const FlightGroup&) const = default;
};

struct FlightCall {
  CollectiveEntry entry;  // without its points of the steady clock
  double called = 0;
  double waited = 0;  // 0: not
  double ended = 0;   // 0: not yet

  /// Since when it is as it is.
  [[nodiscard]] double since() const;
};

struct FlightRecord {
  int rank = 0;
  int world_size = 1;
  std::string cause;  // why it was written
  double written = 0;
  std::vector<FlightGroup> groups;
  std::vector<FlightCall> calls;  // oldest first
};

/// What a rank writes now: its log's entries, oldest first.
[[nodiscard]] FlightRecord make_flight_record(
    std::span<const CollectiveEntry> entries);

/// Errors, of the second: InvalidArgument that says what is broken.
[[nodiscard]] std::string to_json(const FlightRecord& record);
[[nodiscard]] FlightRecord flight_record_from_json(const std::string& text);

/// Writes `folder`/flight_rank_R.json, made with its folder, whole or not at
/// all. Returns its path. Errors: std::system_error.
std::filesystem::path write_flight_record(const std::filesystem::path& folder,
                                          const FlightRecord& record);

/// The records of a folder, by rank. Errors: InvalidArgument that names the
/// folder that holds none, or the file that is broken.
[[nodiscard]] std::vector<FlightRecord> read_flight_records(
    const std::filesystem::path& folder);

}  // namespace tessera
