// What a launcher writes about itself when it joins a job.
#pragma once

#include <optional>
#include <string>

namespace tessera::launch {

struct NodeEntry {
  int num_ranks = 0;
  int min_nodes = 0;
  int max_nodes = 0;
  int max_restarts = 0;
  int num_restarts = 0;   // those that counted, as far as it knows
  std::string host_name;  // for messages; "" where unknown
};

/// One line, and back.
[[nodiscard]] std::string to_line(const NodeEntry& entry);
[[nodiscard]] NodeEntry entry_of_line(const std::string& line);

/// The same numbers of nodes and restarts: they can be of one job.
[[nodiscard]] bool fit_together(const NodeEntry& a, const NodeEntry& b);

/// "--nnodes 2 and --max-restarts 1"
[[nodiscard]] std::string options_of(const NodeEntry& entry);

}  // namespace tessera::launch
