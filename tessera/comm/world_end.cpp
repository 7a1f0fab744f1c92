// How a job ends on one rank that has not failed.
#include <exception>
#include <utility>

#include "tessera/base/log.h"
#include "tessera/comm/position_table.h"
#include "tessera/comm/world_state.h"

namespace tessera {

// Here is nobody to throw to: the log has it, and the other ranks.
void World::State::run_last_checks() noexcept {
  if (failed_) return;
  try {
    deferred.run_all();
  } catch (const std::exception& error) {
    log_error("at the end of the world: ", error.what());
    fail(error.what());
  }
}

void World::State::finish() {
  if (finished_) return;
  check_alive(log.last().sequence);
  try {
    deferred.run_all();
  } catch (const std::exception& error) {
    if (!failed_) fail(error.what());
    throw;
  }
  say_goodbye();
  finished_ = true;
}

void World::State::say_goodbye() {
  if (place.size == 1 || std::exchange(said_goodbye_, true)) return;
  peers.drain();  // peers may give up after it what this rank still reads
  Rendezvous end(store_of("goodbye"), place.rank, place.size, place.timeout,
                 [this] { return failed(); });
  meet("world", kGoodbye, {},
       [&] { end.part("end", [&] { watchdog_->rest(); }); });
}

}  // namespace tessera
