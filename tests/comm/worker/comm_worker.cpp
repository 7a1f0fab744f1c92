// One rank of a job of real processes: comm_worker WHAT TIMEOUT_SECONDS.
// Exit codes: 0 done, 9 CommError (its text on standard output).
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <iostream>
#include <numeric>
#include <string>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/world.h"

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

void run(const std::string& what, std::chrono::seconds timeout) {
  const World world = init_distributed({.timeout = timeout});
  std::vector<int> ranks(world.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  auto comm = world.make_communicator("dp/gather", ranks);
  sum_ranks(*comm, "layers.0");
  if (world.rank() == 1) {
    if (what == "die") _exit(3);
    if (what == "stay_away") stay_away();
    if (what == "throw") throw std::out_of_range("row 7");
  }
  sum_ranks(*comm, "layers.1");
  // Longer than it takes to notice that the store is gone, and to be ended.
  if (world.rank() == 1 && what == "slow_end") std::this_thread::sleep_for(9s);
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
