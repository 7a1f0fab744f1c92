#include "cli/train_program.h"

#include <c10/util/Exception.h>

#include <exception>
#include <iostream>
#include <new>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/comm/error_file.h"
#include "tessera/comm/watchdog.h"
#include "tessera/comm/world_state.h"
#include "tessera/device/growing_segments.h"
#include "tessera/train/agree_on_failure.h"

namespace tessera::cli {
namespace {

using train::AgreedFailure;
using train::ExitCode;

int fail(std::string_view command, ExitCode code, const std::string& message) {
  const auto rank = log_rank();
  std::cerr << str("tessera ", command,
                   rank.value_or(0) > 0 ? str(" (rank ", *rank, ")") : "", ": ",
                   message, "\n");
  return static_cast<int>(code);
}

/// LibTorch's allocators for GPUs and CPUs, and C++'s.
bool is_out_of_memory(const std::exception& error) {
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
         std::string_view(error.what()).find("can't allocate memory") !=
             std::string_view::npos;
}

int fail_by(std::string_view command, const std::exception& error) {
  const std::string reason = reason_of(error);
  return is_out_of_memory(error)
             ? fail(
                   command, ExitCode::out_of_memory,
                   "out of memory: " + reason +
                       "\nTry a smaller train.batch, more ranks, or "
                       "shard.param_dtype=\"bfloat16\"; tessera plan says what "
                       "a run needs.")
             : fail(command, ExitCode::failed, reason);
}

/// Errors that all ranks have alike: no rank leaves the others waiting.
int run_alike(std::string_view command, const World& world,
              const std::exception_ptr& read_error,
              const std::function<int(const World&)>& body) {
  try {
    train::agree_on_failure(world, [&] {
      if (read_error) std::rethrow_exception(read_error);
    });
    return body(world);
  } catch (const AgreedFailure& failure) {
    return world.rank() == 0 ? fail(command, failure.code(), failure.what())
                             : static_cast<int>(failure.code());
  } catch (const CommError&) {
    throw;  // of a peer, which is the cause
  } catch (const std::exception& error) {
    // Before the others hear of it and end too: the launcher names the first.
    write_error_file("", reason_of(error));
    world.state()->announce(reason_of(error));
    throw;
  }
}

int run(std::string_view command, const std::exception_ptr& read_error,
        const InitOptions& options,
        const std::function<int(const World&)>& body) {
  const World world = init_distributed(options);
  prefer_growing_segments(world.device());
  const int code = run_alike(command, world, read_error, body);
  // A rank that ends while others go on has not done what they have.
  world.finish();
  return code;
}

}  // namespace

int run_on_world(std::string_view command, const std::function<void()>& read,
                 const std::function<InitOptions()>& options,
                 const std::function<int(const World&)>& body) {
  std::exception_ptr read_error;
  try {
    read();
  } catch (const Error&) {
    read_error = std::current_exception();
  }
  try {
    return run(command, read_error, read_error ? InitOptions{} : options(),
               body);
  } catch (const PeerFailure& error) {
    return fail(command, ExitCode::peer_failed, error.what());
  } catch (const train::Failure& error) {
    return fail(command, error.code(), error.what());
  } catch (const InvalidArgument& error) {
    return fail(command, ExitCode::wrong_config, error.what());
  } catch (const CommError& error) {
    return fail(command, ExitCode::peer_failed, error.what());
  } catch (const std::exception& error) {
    return fail_by(command, error);
  }
}

}  // namespace tessera::cli
