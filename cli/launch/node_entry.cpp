#include "cli/launch/node_entry.h"

#include <sstream>
#include <tuple>

#include "tessera/base/error.h"

namespace tessera::launch {

std::string to_line(const NodeEntry& entry) {
  return str(entry.num_ranks, " ", entry.min_nodes, " ", entry.max_nodes, " ",
             entry.max_restarts, " ", entry.num_restarts, " ", entry.host_name);
}

NodeEntry entry_of_line(const std::string& line) {
  NodeEntry entry;
  std::istringstream in(line);
  in >> entry.num_ranks >> entry.min_nodes >> entry.max_nodes >>
      entry.max_restarts >> entry.num_restarts >> entry.host_name;
  return entry;
}

bool fit_together(const NodeEntry& a, const NodeEntry& b) {
  return std::tie(a.min_nodes, a.max_nodes, a.max_restarts) ==
         std::tie(b.min_nodes, b.max_nodes, b.max_restarts);
}

std::string options_of(const NodeEntry& entry) {
  const std::string least =
      entry.min_nodes == entry.max_nodes ? "" : str(entry.min_nodes, ":");
  return str("--nnodes ", least, entry.max_nodes, " and --max-restarts ",
             entry.max_restarts);
}

}  // namespace tessera::launch
