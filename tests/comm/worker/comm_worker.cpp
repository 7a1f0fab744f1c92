// One rank of a job of real processes: comm_worker WHAT TIMEOUT_SECONDS.
// Exit codes: 0 done, 9 CommError (its text on standard output).
#include <torch/torch.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <iostream>
#include <numeric>
#include <string>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/world.h"
#include "tessera/comm/world_state.h"

namespace tessera {
namespace {

using namespace std::chrono_literals;

void sum_ranks(Communicator& comm, const std::string& unit) {
  auto tensor = torch::full({1000}, comm.rank() + 1);
  comm.all_reduce(tensor, ReduceOp::sum, {.unit = unit}).wait();
  std::cout << "sum " << tensor[999].item<int64_t>() << std::endl;
}

void stay_away() {
  for (;;) std::this_thread::sleep_for(1h);
}

/// NCCL's abort was seen to hang behind a collective of a CUDA graph.
class HangsInAbort final : public c10d::Backend {
 public:
  using Backend::Backend;
  void abort() override { stay_away(); }
};

void connect_what_hangs(const World& world, const std::vector<int>& ranks) {
  World::State& state = *world.state();
  state.add_group("hangs", ranks);
  const BackendPlace place = {.store = state.store_of("hangs"),
                              .rank = world.rank(),
                              .size = world.size(),
                              .timeout = world.timeout(),
                              .name = "hangs",
                              .world_ranks = ranks};
  (void)state.connect(place, [](const BackendPlace& at) {
    return c10::make_intrusive<HangsInAbort>(at.rank, at.size);
  });
}

// Each rank waits once for the other.
void wait_at_the_store(const World& world) {
  for (int late = 0; late < world.size(); ++late) {
    if (world.rank() == late) std::this_thread::sleep_for(2s);
    world.barrier();
  }
  if (world.rank() == 0) std::this_thread::sleep_for(2s);
  (void)world.exchange("late", "here");
}

void run(const std::string& what, std::chrono::seconds timeout) {
  const World world = init_distributed({.timeout = timeout});
  std::vector<int> ranks(world.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  auto comm = world.make_communicator("dp/gather", ranks);
  sum_ranks(*comm, "layers.0");
  if (what == "wait") wait_at_the_store(world);
  if (what == "hang_in_abort") {
    connect_what_hangs(world, ranks);
    if (world.rank() == 0) stay_away();
    throw std::out_of_range("row 7");
  }
  if (world.rank() == 1) {
    if (what == "die") _exit(3);
    if (what == "stay_away") stay_away();
    if (what == "throw") throw std::out_of_range("row 7");
  }
  sum_ranks(*comm, "layers.1");
  if (what.starts_with("unlike") && world.rank() == 1) {
    comm->check_later({.is_ready = [] { return false; },
                       .run = [] { throw CommError("unlike at the end"); }});
  }
  // Longer than it takes to notice that the store is gone, and to be ended.
  if (world.rank() == 1 && what.starts_with("slow_end"))
    std::this_thread::sleep_for(9s);
  if (what.ends_with("finish")) world.finish();
}

// Other errors stay uncaught: they are what some tests are about.
int run_and_report(const std::string& what, std::chrono::seconds timeout) {
  try {
    run(what, timeout);
    return 0;
  } catch (const CommError& error) {
    std::cout << error.what() << std::endl;
    return 9;
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  return tessera::run_and_report(argv[1],
                                 std::chrono::seconds(std::stoi(argv[2])));
}
