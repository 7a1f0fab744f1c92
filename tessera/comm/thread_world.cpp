// Ranks as threads of one process, for tests.
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <exception>
#include <thread>
#include <vector>

#include "tessera/base/environment.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/comm/backend_factory.h"
#include "tessera/comm/world_state.h"

namespace tessera {
namespace {

using Body = void (*)(void*, const World&);

struct Group {
  int size;
  std::chrono::milliseconds timeout;
  c10::intrusive_ptr<c10d::Store> store;
  std::vector<std::exception_ptr> failures;
};

std::shared_ptr<World::State> make_state(const Group& group, int rank) {
  const WorldPlace place = {.rank = rank,
                            .size = group.size,
                            .local_rank = rank,
                            .timeout = group.timeout};
  auto device = group.size > 1 ? make_gloo_device("", "127.0.0.1") : nullptr;
  return std::make_shared<World::State>(place, group.store, std::move(device));
}

void run_rank(Group& group, int rank, Body call, void* body) {
  const ThreadLogRank log_rank(rank);
  std::shared_ptr<World::State> state;
  try {
    state = make_state(group, rank);
    call(body, World(state));
    state->rendezvous().barrier("end");
  } catch (...) {
    group.failures[rank] = std::current_exception();
    if (state) state->abort();
  }
}

}  // namespace

void internal::run_ranks(int world_size, Body call, void* body,
                         std::chrono::milliseconds timeout) {
  require<InvalidArgument>(world_size >= 1, [&] {
    return str("run_ranks: got ", world_size, " ranks; expected 1 or more.");
  });
  environment::disable_flight_recorder();
  Group group = {.size = world_size,
                 .timeout = timeout,
                 .store = c10::make_intrusive<c10d::HashStore>(),
                 .failures = std::vector<std::exception_ptr>(world_size)};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] { run_rank(group, rank, call, body); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : group.failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace tessera
