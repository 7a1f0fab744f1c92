// This launcher's link to those of the other nodes: a thread that talks to the
// store, so that signals and ranks are served while the network is slow.
//
// The thread is asked by join, say_done and say_over, and answers by events,
// which are announced on a file that poll understands.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "cli/launch/node_group.h"

namespace tessera::launch {

struct NodeLinkOptions {
  NodeGroupOptions group = {};
  std::string address;  // of the store, HOST:PORT, for messages
  OpenNodeStore open;
  std::chrono::milliseconds poll_interval = std::chrono::milliseconds(100);
};

class NodeLink {
 public:
  explicit NodeLink(const NodeLinkOptions& options);
  NodeLink(const NodeLink&) = delete;
  NodeLink& operator=(const NodeLink&) = delete;
  /// Lets go of the thread. Unless has_left(), end the process by _exit: the
  /// thread may hang in the network.
  ~NodeLink();

  void join(int round, int num_restarts);
  void say_done();
  void say_over(const Outcome& outcome);

  /// This node needs the store no more. Where it holds the store, it still
  /// waits until the others have left too, or are dead.
  void leave();
  /// That is over, or was never to be, or the thread hangs in the network.
  [[nodiscard]] bool has_left() const;
  /// The thread has ended.
  [[nodiscard]] bool ended() const;

  /// Readable when next() has something.
  [[nodiscard]] int fd() const;
  /// The next event, if any. A store that cannot be reached, goes away or does
  /// not answer for dead_after is an event too, and the last.
  [[nodiscard]] std::optional<NodeEvent> next();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace tessera::launch
