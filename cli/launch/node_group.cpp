#include "cli/launch/node_group.h"

#include <algorithm>
#include <sstream>

#include "cli/launch/launch_error.h"

namespace tessera::launch {
namespace {

using std::chrono::milliseconds;

std::string seconds_text(milliseconds time) {
  return str(static_cast<double>(time.count()) / 1000.0, " s");
}

}  // namespace

std::string NodeGroup::key(const std::string& name) const {
  return str("tessera-run/", options_.job, "/", round_, "/", name);
}

std::string NodeGroup::key(const std::string& name, int seat) const {
  return key(str(name, "/", seat));
}

std::string NodeGroup::name_of(int seat) const {
  const std::string& host = seats_[seat].host_name;
  return host.empty() ? str("node ", seat)
                      : str("node ", seat, " (", host, ")");
}

// The node that holds the store is node 0 where nobody says otherwise.
std::vector<int> NodeGroup::seats_to_try() const {
  if (options_.node_rank) return {*options_.node_rank};
  std::vector<int> seats;
  if (seat_ >= 0) seats.push_back(seat_);  // that of the round before
  if (store_.hosted_here()) seats.push_back(0);
  for (int seat = 1; seat < options_.num_nodes; ++seat) seats.push_back(seat);
  seats.push_back(0);
  return seats;
}

bool NodeGroup::take_seat() {
  for (const int seat : seats_to_try()) {
    if (store_.add(key("seat", seat), 1) != 1) continue;
    seat_ = seat;
    store_.set(key("node", seat),
               str(options_.ranks_per_node, " ", options_.num_nodes, " ",
                   options_.max_restarts, " ", options_.host_name));
    return true;
  }
  return false;
}

void NodeGroup::join(int round, Time now) {
  const std::string round_key = str("tessera-run/", options_.job, "/round");
  const std::string present = store_.get(round_key).value_or("0");
  round_ = std::max(round, std::stoi(present));
  if (round_ > std::stoi(present)) store_.set(round_key, str(round_));
  seats_.assign(options_.num_nodes, {});
  said_done_ = false;
  joined_since_ = now;
  last_beat_ = {};
  phase_ = take_seat() ? Phase::joining : Phase::no_seat;
}

void NodeGroup::say_done() {
  if (said_done_) return;
  said_done_ = true;
  store_.add(key("done"), 1);
}

void NodeGroup::say_over(const Outcome& outcome) {
  (void)store_.set_if_absent(key("over"), to_line(outcome));
}

void NodeGroup::leave() {
  if (seat_ >= 0) store_.set(key("left", seat_), "left");
}

void NodeGroup::beat(Time now) {
  if (now - last_beat_ < options_.beat_interval) return;
  last_beat_ = now;
  store_.add(key("beat", seat_), 1);
  hear_beats(now);
}

void NodeGroup::hear_beats(Time now) {
  for (int seat = 0; seat < options_.num_nodes; ++seat) {
    const std::string beat = store_.get(key("beat", seat)).value_or("");
    if (beat == seats_[seat].beat) continue;
    seats_[seat].beat = beat;
    seats_[seat].heard = now;
  }
}

std::optional<int> NodeGroup::find_lost(Time now) const {
  for (int seat = 0; seat < options_.num_nodes; ++seat) {
    if (seat != seat_ && now - seats_[seat].heard > options_.dead_after) {
      return seat;
    }
  }
  return std::nullopt;
}

void NodeGroup::read_seats(Time now) {
  for (int seat = 0; seat < options_.num_nodes; ++seat) {
    Seat& taken = seats_[seat];
    if (!taken.entry.empty()) continue;
    taken.entry = store_.get(key("node", seat)).value_or("");
    std::istringstream in(taken.entry);
    in >> taken.num_ranks >> taken.num_nodes >> taken.max_restarts;
    in >> taken.host_name;
    taken.heard = now;
  }
}

std::optional<Outcome> NodeGroup::misfit() const {
  for (int seat = 0; seat < options_.num_nodes; ++seat) {
    const Seat& other = seats_[seat];
    if (other.entry.empty() || (other.num_nodes == options_.num_nodes &&
                                other.max_restarts == options_.max_restarts)) {
      continue;
    }
    return Outcome{
        Outcome::Kind::not_met, kExitUsage, 0,
        str(name_of(seat), " was started with --nnodes ", other.num_nodes,
            " and --max-restarts ", other.max_restarts, ", ", name_of(seat_),
            " with ", options_.num_nodes, " and ", options_.max_restarts,
            "; give all nodes the same")};
  }
  return std::nullopt;
}

NodePlace NodeGroup::place() const {
  NodePlace place{.round = round_, .node_rank = seat_};
  for (int seat = 0; seat < options_.num_nodes; ++seat) {
    if (seat < seat_) place.first_rank += seats_[seat].num_ranks;
    place.world_size += seats_[seat].num_ranks;
  }
  return place;
}

// Another may have spoken first; the next poll hears who.
std::optional<NodeEvent> NodeGroup::end_by_own_word(Outcome outcome) {
  say_over(outcome);
  return std::nullopt;
}

std::optional<NodeEvent> NodeGroup::poll_joining(Time now) {
  read_seats(now);
  if (const auto outcome = misfit()) return end_by_own_word(*outcome);
  std::string missing;
  for (int seat = 0; seat < options_.num_nodes; ++seat) {
    if (seats_[seat].entry.empty()) {
      missing += str(missing.empty() ? "" : ", ", seat);
    }
  }
  if (missing.empty()) {
    phase_ = Phase::running;
    for (Seat& seat : seats_) seat.heard = now;
    return NodeEvent{.joined = place()};
  }
  if (now - joined_since_ < options_.join_timeout) return std::nullopt;
  return end_by_own_word(
      {Outcome::Kind::not_met, kExitNotMet, 0,
       str("not all of the ", options_.num_nodes, " nodes came within ",
           seconds_text(options_.join_timeout), "; missing: node ", missing)});
}

// A launcher that comes in place of a lost one may come before that is noticed.
std::optional<NodeEvent> NodeGroup::poll_for_a_seat(Time now) {
  const std::string present =
      store_.get(str("tessera-run/", options_.job, "/round")).value_or("0");
  const Time since = joined_since_;
  if (std::stoi(present) > round_) {
    join(round_ + 1, now);
    return std::nullopt;
  }
  const bool waits = !options_.node_rank || options_.max_restarts > 0;
  if (waits && now - since < 2 * options_.dead_after) return std::nullopt;
  phase_ = Phase::ended;
  const std::string what =
      options_.node_rank
          ? str("another launcher has --node-rank ", *options_.node_rank)
          : str("the job has all its ", options_.num_nodes, " nodes");
  return NodeEvent{.outcome = {Outcome::Kind::not_met, kExitNotMet, 0,
                               what + "; give each node a rank of its own, and "
                                      "each job its own --rdzv-id or port"}};
}

std::optional<NodeEvent> NodeGroup::poll(Time now) {
  if (phase_ == Phase::no_seat) return poll_for_a_seat(now);
  if (seat_ >= 0) beat(now);
  if (phase_ == Phase::ended) return std::nullopt;
  const auto over = store_.get(key("over"));
  if (phase_ == Phase::joining) {  // the others may be ahead of this node
    auto joined = poll_joining(now);
    if (joined || !over) return joined;
  }
  if (over) {
    phase_ = Phase::ended;
    return NodeEvent{.outcome = outcome_of_line(*over)};
  }
  if (store_.get(key("done")) == str(options_.num_nodes)) {
    phase_ = Phase::ended;
    return NodeEvent{};
  }
  if (const auto lost = find_lost(now)) {
    return end_by_own_word({Outcome::Kind::node_lost, kExitNodeLost, 0,
                            str(name_of(*lost), " has not answered for ",
                                seconds_text(options_.dead_after))});
  }
  return std::nullopt;
}

bool NodeGroup::others_have_left(Time now) {
  beat(now);
  for (int seat = 0; seat < options_.num_nodes; ++seat) {
    const Seat& other = seats_[seat];
    if (seat == seat_ || other.entry.empty()) continue;
    if (now - other.heard > options_.dead_after) continue;
    if (!store_.get(key("left", seat))) return false;
  }
  return true;
}

}  // namespace tessera::launch
