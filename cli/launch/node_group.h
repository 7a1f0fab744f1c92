// How the launchers of a job of several nodes agree, by way of a store.
//
// The job is a row of rounds, one an attempt. In each round every node takes a
// seat, and the round goes from joining to running when all seats are taken, or
// enough of them and nobody else has come for `last_call`. Its members are then
// written down, numbered in the order of their seats. It ends at the first of
//
//   all members are done        each has said so
//   one node says that it is    a rank failed there, or it was sent a signal;
//   over                        the first word counts, for all nodes
//   a member is lost            its beat has not been heard for dead_after
//   another node comes          where there is a seat for it
//
// Every node draws the same conclusion from the same word, so nothing more need
// be said to start the next round: they meet again in it. A node that was lost
// may come back as a new launcher; it finds the present round in the store.
//
// Keys, below the name of the job:
//   round                the present round
//   <k>/seat/<r>         how many have wanted node rank r in round k
//   <k>/node/<r>         who has it, see node_entry.h
//   <k>/members          seats of the nodes that run this round, once they do
//   <k>/beat/<r>         counts up while the launcher lives
//   <k>/done, <k>/over   the end
//   <k>/left/<r>         does not need the store any more
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "cli/launch/node_entry.h"
#include "cli/launch/node_place.h"
#include "cli/launch/node_store.h"
#include "cli/launch/outcome.h"

namespace tessera::launch {

class NodeGroup {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// Both must outlive this object.
  NodeGroup(NodeStore& store, const NodeGroupOptions& options)
      : store_(store), options_(options) {}

  /// Takes a seat in `round`, or in the present round if that is later.
  /// num_restarts: those that counted, as this node knows.
  void join(int round, Time now, int num_restarts = 0);
  /// This node's ranks have all ended with 0.
  void say_done();
  /// The round ends by this, unless a node has said so before.
  void say_over(const Outcome& outcome);
  /// Beats, and looks for news of this round. Call it often.
  /// Errors: StoreGone.
  [[nodiscard]] std::optional<NodeEvent> poll(Time now);

  /// This node does not need the store any more.
  void leave();
  /// No other node that lives needs it.
  [[nodiscard]] bool others_have_left(Time now);

 private:
  enum class Phase { no_seat, joining, running, ended };
  struct Seat {
    std::optional<NodeEntry> entry = {};  // none: nobody has it
    std::string beat;
    Time heard = {};
  };

  [[nodiscard]] std::string key(const std::string& name) const;
  [[nodiscard]] std::string key(const std::string& name, int seat) const;
  [[nodiscard]] std::vector<int> seats_to_try() const;
  [[nodiscard]] std::string name_of(int seat) const;
  bool take_seat();
  void beat(Time now);
  void hear_beats(Time now);
  void read_seats(Time now);
  [[nodiscard]] std::optional<Outcome> misfit() const;
  [[nodiscard]] NodeEntry own_entry() const;
  [[nodiscard]] bool is_complete(Time now);
  [[nodiscard]] std::optional<NodeEvent> run_with(const std::string& members);
  [[nodiscard]] std::optional<NodeEvent> come_late(const std::string& members,
                                                   Time now);
  [[nodiscard]] bool all_are_done();
  [[nodiscard]] std::optional<NodeEvent> poll_joining(Time now);
  [[nodiscard]] std::optional<NodeEvent> poll_running(Time now);
  [[nodiscard]] std::optional<NodeEvent> poll_for_a_seat(Time now);
  [[nodiscard]] std::optional<NodeEvent> end_by_own_word(Outcome outcome);
  [[nodiscard]] NodePlace place() const;
  [[nodiscard]] std::optional<int> find_lost(Time now) const;

  NodeStore& store_;
  const NodeGroupOptions& options_;
  Phase phase_ = Phase::ended;
  int round_ = 0;
  int seat_ = -1;
  int num_restarts_ = 0;
  std::vector<Seat> seats_;
  std::vector<int> members_;  // seats, once the round runs
  Time joined_since_ = {};
  std::optional<Time> enough_since_ = {};
  Time last_beat_ = {};
  bool said_done_ = false;
};

}  // namespace tessera::launch
