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
  const auto& entry = seats_[seat].entry;
  const std::string host = entry ? entry->host_name : "";
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

NodeEntry NodeGroup::own_entry() const {
  return {.num_ranks = options_.ranks_per_node,
          .min_nodes = options_.least(),
          .max_nodes = options_.num_nodes,
          .max_restarts = options_.max_restarts,
          .num_restarts = num_restarts_,
          .host_name = options_.host_name};
}

bool NodeGroup::take_seat() {
  for (const int seat : seats_to_try()) {
    if (store_.add(key("seat", seat), 1) != 1) continue;
    seat_ = seat;
    store_.set(key("node", seat), to_line(own_entry()));
    return true;
  }
  return false;
}

void NodeGroup::join(int round, Time now, int num_restarts) {
  const std::string round_key = str("tessera-run/", options_.job, "/round");
  const std::string present = store_.get(round_key).value_or("0");
  round_ = std::max(round, std::stoi(present));
  if (round_ > std::stoi(present)) store_.set(round_key, str(round_));
  num_restarts_ = num_restarts;
  seats_.assign(options_.num_nodes, {});
  members_.clear();
  enough_since_.reset();
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
  for (const int seat : members_) {
    if (seat != seat_ && now - seats_[seat].heard > options_.dead_after) {
      return seat;
    }
  }
  return std::nullopt;
}

void NodeGroup::read_seats(Time now) {
  for (int seat = 0; seat < options_.num_nodes; ++seat) {
    Seat& taken = seats_[seat];
    if (taken.entry) continue;
    const auto line = store_.get(key("node", seat));
    if (line) taken.entry = entry_of_line(*line);
    taken.heard = now;
  }
}

std::optional<Outcome> NodeGroup::misfit() const {
  for (int seat = 0; seat < options_.num_nodes; ++seat) {
    const auto& other = seats_[seat].entry;
    if (!other || fit_together(*other, own_entry())) continue;
    return Outcome{Outcome::Kind::not_met, kExitUsage, 0,
                   str(name_of(seat), " was started with ", options_of(*other),
                       ", ", name_of(seat_), " with ", options_of(own_entry()),
                       "; give all nodes the same")};
  }
  return std::nullopt;
}

NodePlace NodeGroup::place() const {
  NodePlace place{.round = round_,
                  .num_nodes = static_cast<int>(members_.size())};
  for (size_t i = 0; i < members_.size(); ++i) {
    const NodeEntry& entry = *seats_[members_[i]].entry;
    if (members_[i] == seat_) place.node_rank = static_cast<int>(i);
    if (members_[i] < seat_) place.first_rank += entry.num_ranks;
    place.world_size += entry.num_ranks;
    place.num_restarts = std::max(place.num_restarts, entry.num_restarts);
  }
  return place;
}

// Another may have spoken first; the next poll hears who.
std::optional<NodeEvent> NodeGroup::end_by_own_word(Outcome outcome) {
  say_over(outcome);
  return std::nullopt;
}

// All that may come are here, or enough, and nobody else has come for a while.
bool NodeGroup::is_complete(Time now) {
  const auto taken = std::ranges::count_if(
      seats_, [](const Seat& seat) { return seat.entry.has_value(); });
  if (taken == options_.num_nodes) return true;
  if (taken < options_.least()) return false;
  if (!enough_since_) enough_since_ = now;
  return now - *enough_since_ >= options_.last_call;
}

// `members` as the first of them wrote it down.
std::optional<NodeEvent> NodeGroup::run_with(const std::string& members) {
  std::istringstream in(members);
  for (int seat = 0; in >> seat;) members_.push_back(seat);
  phase_ = Phase::running;
  return NodeEvent{.joined = place()};
}

// The round runs without this node: all meet in the next.
std::optional<NodeEvent> NodeGroup::come_late(const std::string& members,
                                              Time now) {
  const auto count = std::ranges::count(members, ' ') + 1;
  if (store_.get(key("done")) == str(count)) {
    phase_ = Phase::ended;
    return NodeEvent{.outcome = {Outcome::Kind::not_met, kExitNotMet, 0,
                                 "the job has ended before this node came"}};
  }
  say_over({Outcome::Kind::regrouped, 0, 0, name_of(seat_) + " has come"});
  join(round_ + 1, now, num_restarts_);
  return std::nullopt;
}

std::optional<NodeEvent> NodeGroup::poll_joining(Time now) {
  read_seats(now);
  if (const auto outcome = misfit()) return end_by_own_word(*outcome);
  std::string here, missing;
  for (int seat = 0; seat < options_.num_nodes; ++seat) {
    if (seats_[seat].entry) {
      here += str(here.empty() ? "" : " ", seat);
    } else {
      missing += str(missing.empty() ? "" : ", ", seat);
    }
  }
  auto members = store_.get(key("members"));
  if (!members && is_complete(now)) {
    members = store_.set_if_absent(key("members"), here);
  }
  if (members) {
    for (Seat& seat : seats_) seat.heard = now;
    const std::string own = str(" ", seat_, " ");
    const bool member = str(" ", *members, " ").find(own) != std::string::npos;
    return member ? run_with(*members) : come_late(*members, now);
  }
  if (now - joined_since_ < options_.join_timeout) return std::nullopt;
  return end_by_own_word(
      {Outcome::Kind::not_met, kExitNotMet, 0,
       str("not all of the ", options_.least(), " nodes came within ",
           seconds_text(options_.join_timeout), "; missing: node ", missing)});
}

// A launcher that comes in place of a lost one may come before that is noticed.
std::optional<NodeEvent> NodeGroup::poll_for_a_seat(Time now) {
  const std::string present =
      store_.get(str("tessera-run/", options_.job, "/round")).value_or("0");
  const Time since = joined_since_;
  if (std::stoi(present) > round_) {
    join(round_ + 1, now, num_restarts_);
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
    const int round = round_;
    auto joined = poll_joining(now);
    if (joined || !over || round_ != round) return joined;
  }
  if (over) {
    const Outcome outcome = outcome_of_line(*over);
    const bool too_late =
        outcome.kind == Outcome::Kind::regrouped && all_are_done();
    if (!too_late) {
      phase_ = Phase::ended;
      return NodeEvent{.outcome = outcome};
    }
  }
  return poll_running(now);
}

bool NodeGroup::all_are_done() {
  return store_.get(key("done")) == str(members_.size());
}

std::optional<NodeEvent> NodeGroup::poll_running(Time now) {
  if (all_are_done()) {
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
    if (seat == seat_ || !other.entry) continue;
    if (now - other.heard > options_.dead_after) continue;
    if (!store_.get(key("left", seat))) return false;
  }
  return true;
}

}  // namespace tessera::launch
