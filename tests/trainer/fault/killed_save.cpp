// `tessera train CONFIG`, of which one rank is killed while it saves a
// checkpoint: killed_save CONFIG STEP WHERE [--table.key=value...], with WHERE
// one of
//
//   data      rank 1, with half of its file written
//   metadata  rank 0, with half of .metadata written
//   rename    rank 0, before the folder gets its name
//   refused   none: rank 1's disk refuses its file
#include <signal.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "cli/train_program.h"
#include "tessera/base/error.h"
#include "tessera/train/train.h"
#include "tests/checkpoint_format/folder/hooked_storage.h"

namespace tessera::train {
namespace {

/// The n-th time (from 1) that a path with this end is written to.
struct Moment {
  std::string end;
  int time;
};

Moment moment_of(const std::string& step, const std::string& where) {
  if (where == "refused") return {"__1_0.distcp", 1};
  if (where == "data") return {"__1_0.distcp", 2};
  if (where == "metadata") return {".metadata", 2};
  if (where == "rename") return {"/step-" + step, 1};
  throw InvalidArgument(str("killed_save: no '", where, "'."));
}

std::shared_ptr<checkpoint::Storage> failing_storage(const std::string& step,
                                                     const std::string& where) {
  const Moment moment = moment_of(step, where);
  const auto times = std::make_shared<std::atomic<int>>(0);
  return std::make_shared<checkpoint::HookedStorage>(
      [=](int64_t, const std::string& path) {
        const bool of_step = path.find("step-" + step) != path.npos;
        if (of_step && path.ends_with(moment.end) && ++*times == moment.time) {
          if (where != "refused") ::raise(SIGKILL);
          throw CheckpointError(str("'", path, "': refused by the test"));
        }
      });
}

}  // namespace
}  // namespace tessera::train

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const std::vector<std::string> overrides(argv + 4, argv + argc);
  namespace train = tessera::train;
  train::TrainConfig config;
  return tessera::cli::run_on_world(
      "train", [&] { config = train::read_train_config(argv[1], overrides); },
      [] { return tessera::InitOptions{.timeout = std::chrono::seconds(10)}; },
      [&](const tessera::World& world) {
        (void)train::train(
            config, world,
            {.storage = train::failing_storage(argv[2], argv[3])});
        return 0;
      });
}
