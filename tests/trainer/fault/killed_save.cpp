// `tessera train CONFIG`, of which one rank is killed while it saves a
// checkpoint: killed_save CONFIG STEP WHERE, with WHERE one of
//
//   data      rank 1, with half of its file written
//   metadata  rank 0, with half of .metadata written
//   rename    rank 0, before the folder gets its name
#include <signal.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

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
  if (where == "data") return {"__1_0.distcp", 2};
  if (where == "metadata") return {".metadata", 2};
  if (where == "rename") return {"/step-" + step, 1};
  throw InvalidArgument(str("killed_save: no '", where, "'."));
}

std::shared_ptr<checkpoint::Storage> killing_storage(const std::string& step,
                                                     const Moment& moment) {
  const auto times = std::make_shared<std::atomic<int>>(0);
  return std::make_shared<checkpoint::HookedStorage>(
      [=](int64_t, const std::string& path) {
        const bool of_step = path.find("step-" + step) != path.npos;
        if (of_step && path.ends_with(moment.end) && ++*times == moment.time) {
          ::raise(SIGKILL);
        }
      });
}

}  // namespace
}  // namespace tessera::train

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  namespace train = tessera::train;
  train::TrainConfig config;
  return tessera::cli::run_on_world(
      "train", [&] { config = train::read_train_config(argv[1]); },
      [] { return tessera::InitOptions{.timeout = std::chrono::seconds(10)}; },
      [&](const tessera::World& world) {
        const auto moment = train::moment_of(argv[2], argv[3]);
        (void)train::train(
            config, world,
            {.storage = train::killing_storage(argv[2], moment)});
        return 0;
      });
}
