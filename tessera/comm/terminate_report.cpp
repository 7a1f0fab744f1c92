#include "tessera/comm/terminate_report.h"

#include <c10/util/Type.h>

#include <exception>
#include <mutex>
#include <string>
#include <typeinfo>
#include <utility>

#include "tessera/base/log.h"
#include "tessera/comm/error_file.h"
#include "tessera/comm/world_state.h"

namespace tessera {
namespace {

// The terminate handler belongs to the process, so its data does too.
struct Report {
  std::mutex mutex;
  std::weak_ptr<World::State> state;
  std::terminate_handler previous = nullptr;
  bool installed = false;
};

Report& report() {
  static Report* report = new Report;  // needed until the very end
  return *report;
}

// Its type as C++ names it, and what it says.
std::pair<std::string, std::string> current_error() {
  const std::exception_ptr error = std::current_exception();
  if (!error) return {"", "std::terminate was called"};
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return {c10::demangle(typeid(known).name()), reason_of(known)};
  } catch (...) {
    return {"", "an exception that is no std::exception"};
  }
}

void report_to_world(const std::shared_ptr<World::State>& state,
                     const std::string& error) noexcept {
  log_error("this process ends by an uncaught exception: ", error);
  (void)state->table(error);
  // Closing connections could hang: the thread that threw may hold their locks.
  state->announce(error);
  // The process dies here: what the World would wait for at its end is moot.
  static std::shared_ptr<World::State> kept;
  kept = state;
}

void write_report() noexcept {
  std::shared_ptr<World::State> state;
  {
    const std::lock_guard lock(report().mutex);
    state = report().state.lock();
    report().state.reset();
  }
  const auto [type, error] = current_error();
  write_error_file(type, error);
  if (state) report_to_world(state, error);
}

[[noreturn]] void handle_terminate() {
  write_report();
  const std::terminate_handler previous = report().previous;
  if (previous) previous();
  std::abort();
}

}  // namespace

void report_on_terminate(const std::shared_ptr<World::State>& state) {
  report_on_terminate();
  const std::lock_guard lock(report().mutex);
  report().state = state;
}

void report_on_terminate() {
  const std::lock_guard lock(report().mutex);
  if (report().installed) return;
  report().installed = true;
  report().previous = std::set_terminate(handle_terminate);
}

}  // namespace tessera
