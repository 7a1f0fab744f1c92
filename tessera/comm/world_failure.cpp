// How a job fails on one rank: what is told, to whom, and left behind.
#include <algorithm>

#include "tessera/base/environment.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/comm/flight_record.h"
#include "tessera/comm/world_state.h"

namespace tessera {
namespace {

std::string describe_entry(int rank, const CollectiveEntry& entry) {
  std::string text = str("rank ", rank, ": ", entry.kind, " #", entry.sequence,
                         " on '", entry.communicator, "'");
  if (!entry.unit.empty()) text += str(", unit '", entry.unit, "'");
  if (!entry.phase.empty()) text += str(", ", entry.phase);
  if (!entry.op.empty()) text += str(", ", entry.op);
  return text;
}

// Not so: what connects a group.
bool is_made_by_all(const CollectiveEntry& entry) {
  return entry.kind != "connect";
}

}  // namespace

void World::State::raise(uint64_t sequence, const std::string& cause) {
  const std::string record = record_flight(cause);
  const auto known = watchdog_ ? watchdog_->contradiction() : std::nullopt;
  const std::string what = str(describe_entry(place.rank, log.at(sequence)),
                               ": ", known.value_or(cause));
  const auto peer = watchdog_ ? watchdog_->peer_failure() : std::nullopt;
  const std::string table = peer ? "" : this->table();
  abort();
  if (peer) throw PeerFailure(str(what, " Cause: ", *peer, record));
  throw CommError(str(what, record, "\n", table));
}

void World::State::look_at_device() {
  if (failed_) return;
  if (const auto entry = replayed.overdue(place.timeout)) {
    fail_on_device(*entry, "in the replay of a captured step");
    return;
  }
  if (const auto entry = peers.overdue(place.timeout)) {
    fail_on_device(*entry, "on the device");
  }
}

void World::State::fail_on_device(const CollectiveEntry& entry,
                                  const char* where) {
  failed_ = true;
  peers.stop();
  const uint64_t sequence = log.enter_again(entry);
  const std::chrono::duration<double> timeout = place.timeout;
  const std::string what = str(describe_entry(place.rank, log.at(sequence)),
                               ": it did not end within ", timeout.count(),
                               " s ", where, ".");
  log_error(what, record_flight(what));
  // Tells the others. No abort: NCCL's may hang behind a graph, and the
  // watchdog ends this process.
  (void)table();
}

void World::State::check_alive(uint64_t sequence) {
  if (failed_) raise(sequence, "this world has failed before.");
  require<InvalidState>(!finished_, [&] {
    return str(describe_entry(place.rank, log.at(sequence)),
               ": after World::finish, which must be the last call.");
  });
}

template <class Ask>
void World::State::require_alike(uint64_t sequence, Ask&& ask) {
  std::optional<std::string> difference;
  try {
    difference = ask();
  } catch (const std::exception& error) {
    raise(sequence, reason_of(error));
  }
  if (!difference) return;
  const std::string record = record_flight(*difference);
  fail(*difference);
  throw CommError(*difference + record);
}

void World::State::begin(uint64_t sequence) {
  check_alive(sequence);
  if (!check_) return;
  const CollectiveEntry entry = log.at(sequence);
  const std::vector<int> ranks = peers_of(entry.communicator);
  if (ranks.size() < 2 || !is_made_by_all(entry)) return;
  require_alike(sequence, [&] { return check_->compare(entry, ranks); });
}

void World::State::begin_messages(uint64_t sequence,
                                  const std::vector<MessageEnd>& ends) {
  check_alive(sequence);
  if (!messages_) return;
  for (const MessageEnd& end : ends) {
    require_alike(sequence, [&] { return messages_->compare(end); });
  }
}

void World::State::announce(const std::string& cause) noexcept {
  record_flight(cause);
  if (watchdog_) watchdog_->announce(cause);
}

void World::State::fail(const std::string& cause) noexcept {
  announce(cause);
  abort();
}

std::string World::State::table(const std::string& cause) noexcept {
  return watchdog_ ? watchdog_->table(cause) : log.describe();
}

std::string World::State::record_flight(const std::string& cause) noexcept {
  const std::lock_guard lock(flight_mutex_);
  if (flight_) return *flight_;
  flight_ = "";
  try {
    const auto folder = environment::text("TESSERA_FLIGHT_FOLDER");
    if (!folder) return "";
    FlightRecord record = make_flight_record(log.entries());
    record.rank = place.rank;
    record.world_size = place.size;
    record.cause = cause;
    const std::lock_guard groups_lock(mutex_);
    for (const auto& [name, ranks] : groups_) {
      record.groups.push_back({name, ranks});
    }
    flight_ = str(
        " Flight record: ", write_flight_record(*folder, record).string(), ".");
  } catch (const std::exception& error) {
    log_warning("the flight record cannot be written: ", error.what());
  }
  return *flight_;
}

std::vector<int> World::State::peers_of(const std::string& communicator) {
  const std::lock_guard lock(mutex_);
  const auto [first, last] = groups_.equal_range(communicator);
  std::vector<int> ranks;
  for (auto group = first; group != last; ++group) {
    const bool member =
        std::count(group->second.begin(), group->second.end(), place.rank) > 0;
    // Two groups of one name: the log does not tell their calls apart.
    if (member && !ranks.empty()) return {};
    if (member) ranks = group->second;
  }
  return ranks;
}

std::string reason_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  std::string text =
      torch_error ? torch_error->what_without_backtrace() : error.what();
  const size_t advice = text.find(". This is typically caused by");
  return advice == std::string::npos ? text : text.substr(0, advice + 1);
}

}  // namespace tessera
