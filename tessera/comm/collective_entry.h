// One collective as a rank's log holds it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

/// What a collective does with what it moves; all ranks say the same.
struct CallTerms {
  std::string_view reduction = "";  // "sum", "max", ...; "" for none
  int root = -1;                    // rank in the group; -1 for none
};

struct CollectiveEntry {
  uint64_t sequence = 0;  // counts from 1; 0: none yet
  std::string communicator;
  int64_t index = 0;  // the n-th on this communicator, from 1
  std::string kind;   // "all_gather", "reduce_scatter", ...
  std::string unit;
  std::string phase;
  std::string op;
  int64_t numel = 0;
  std::string dtype;  // "Float", "BFloat16", ..., "" for none
  int64_t num_bytes = 0;
  std::string reduction;  // of CallTerms
  int root = -1;
  bool waited = false;  // this rank stands in its wait
  bool finished = false;
  std::chrono::steady_clock::time_point called;
  std::chrono::steady_clock::time_point started;  // or its wait, once waited
  std::chrono::steady_clock::time_point ended;    // once finished

  /// Since when it is as it is.
  [[nodiscard]] std::chrono::steady_clock::time_point since() const {
    return finished ? ended : started;
  }
};

}  // namespace tessera
