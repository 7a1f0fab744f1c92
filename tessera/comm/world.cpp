#include "tessera/comm/world.h"

#include <algorithm>
#include <set>

#include "tessera/base/error.h"
#include "tessera/comm/communicator_base.h"
#include "tessera/comm/world_state.h"

namespace tessera {
namespace {

World::State& checked(const std::shared_ptr<World::State>& state) {
  require<InvalidState>(state != nullptr, [] {
    return str("World: this handle is empty; make it by init_distributed().");
  });
  return *state;
}

void check_ranks(const WorldPlace& place, const std::string& name,
                 const std::vector<int>& ranks) {
  const std::set<int> distinct(ranks.begin(), ranks.end());
  require<InvalidArgument>(
      distinct.size() == ranks.size() && distinct.contains(place.rank) &&
          *distinct.begin() >= 0 && *distinct.rbegin() < place.size,
      [&] {
        std::string got;
        for (const int rank : ranks) got += str(got.empty() ? "" : ", ", rank);
        return str("make_communicator: '", name, "' got ranks {", got,
                   "}; expected distinct ranks of 0..", place.size - 1,
                   " with this rank, ", place.rank, ", among them.");
      });
}

}  // namespace

int World::rank() const { return checked(state_).place.rank; }
int World::size() const { return checked(state_).place.size; }
int World::local_rank() const { return checked(state_).place.local_rank; }
c10::Device World::device() const { return checked(state_).place.device; }

std::chrono::milliseconds World::timeout() const {
  return checked(state_).place.timeout;
}

Transport World::transport() const { return checked(state_).place.transport; }

const std::string& World::launcher() const {
  return checked(state_).place.launcher;
}

CollectiveLog& World::log() const { return checked(state_).log; }

ReplayedCalls& World::replayed() const { return checked(state_).replayed; }

void World::before_replay(const c10::Stream& stream) const {
  State& state = checked(state_);
  state.peers.before_replay(stream);
  state.replayed.launch();
}

void World::after_replay(const c10::Stream& stream) const {
  checked(state_).peers.after_replay(stream);
}

void World::check_alive() const {
  State& state = checked(state_);
  state.check_alive(state.log.last().sequence);
}

std::shared_ptr<Communicator> World::make_communicator(
    const std::string& name, const std::vector<int>& ranks) const {
  check_ranks(checked(state_).place, name, ranks);
  return make_backend_communicator(state_, name, ranks);
}

std::vector<std::string> World::exchange(std::string_view key,
                                         std::string_view bytes) const {
  State& state = checked(state_);
  return state.meet("world", "exchange", {.op = key}, [&] {
    return state.rendezvous().exchange(std::string(key), bytes);
  });
}

void World::finish() const { checked(state_).finish(); }

void World::barrier() const {
  State& state = checked(state_);
  state.meet("world", "barrier", {},
             [&] { state.rendezvous().barrier("barrier"); });
}

int64_t World::next_id() const { return checked(state_).next_id++; }

}  // namespace tessera
