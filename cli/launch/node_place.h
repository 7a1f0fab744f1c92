// What a launcher tells the others, and what it hears of its place among them.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "cli/launch/outcome.h"

namespace tessera::launch {

struct NodeGroupOptions {
  std::string job = "none";           // the same for all launchers of a job
  int num_nodes = 2;                  // at most
  std::optional<int> min_nodes = {};  // unset: num_nodes
  std::optional<int> node_rank = {};  // the seat asked for; else any
  int ranks_per_node = 1;             // of this node
  int max_restarts = 0;
  std::string host_name;  // of this node, for messages
  std::chrono::milliseconds join_timeout = std::chrono::minutes(10);
  std::chrono::milliseconds last_call = std::chrono::seconds(30);
  std::chrono::milliseconds beat_interval = std::chrono::seconds(5);
  std::chrono::milliseconds dead_after = std::chrono::seconds(15);

  [[nodiscard]] int least() const { return min_nodes.value_or(num_nodes); }
};

/// Where a node stands in a round that runs.
struct NodePlace {
  int round = 0;
  int node_rank = 0;
  int num_nodes = 0;
  int first_rank = 0;  // of this node
  int world_size = 0;
  int num_restarts = 0;  // those that counted, of all members the most
};

struct NodeEvent {
  std::optional<NodePlace> joined = {};  // else the round has ended:
  Outcome outcome = {};
};

}  // namespace tessera::launch
