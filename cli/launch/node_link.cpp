#include "cli/launch/node_link.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "cli/launch/file_descriptor.h"
#include "cli/launch/launch_error.h"

namespace tessera::launch {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

using Command = std::function<void(NodeGroup&)>;

[[noreturn]] void throw_not_reached(const NodeLinkOptions& options,
                                    const std::string& reason) {
  const milliseconds waited = options.group.join_timeout;
  throw LaunchError(
      kExitNotMet,
      str("cannot reach the store of the job at ", options.address, " within ",
          static_cast<double>(waited.count()) / 1000.0, " s (", reason,
          "); see whether the launcher of that node runs, and the address"));
}

}  // namespace

// What both threads see; it lives until the last of them lets go.
struct NodeLink::Shared {
  explicit Shared(NodeLinkOptions given)
      : options(std::move(given)),
        event_fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  const NodeLinkOptions options;
  FileDescriptor event_fd;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Command> commands;
  std::deque<NodeEvent> events;
  Clock::time_point last_answer = Clock::now();
  bool connected = false;
  bool leaving = false;
  bool ended = false;  // no more events; for the thread: it is over

  void push(NodeEvent event) {
    const std::lock_guard lock(mutex);
    events.push_back(std::move(event));
    const uint64_t one = 1;
    (void)!::write(event_fd.get(), &one, sizeof(one));
  }
  void command(Command command) {
    const std::lock_guard lock(mutex);
    commands.push_back(std::move(command));
    changed.notify_all();
  }
  std::optional<Command> next_command() {
    const std::lock_guard lock(mutex);
    if (commands.empty()) return std::nullopt;
    Command command = std::move(commands.front());
    commands.pop_front();
    return command;
  }
  [[nodiscard]] bool is_leaving() {
    const std::lock_guard lock(mutex);
    return leaving;
  }
  // Until something is asked, or the poll interval is over.
  void sleep() {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, options.poll_interval,
                     [&] { return leaving || !commands.empty(); });
  }
  void note_answer() {
    const std::lock_guard lock(mutex);
    last_answer = Clock::now();
    connected = true;
  }

  void run();
  std::unique_ptr<NodeStore> connect();
  void talk(NodeGroup& group);
  void part(NodeGroup& group, bool hosts);
};

// Null when it was told to leave before.
std::unique_ptr<NodeStore> NodeLink::Shared::connect() {
  constexpr milliseconds kOneTry{2000};
  const auto deadline = Clock::now() + options.group.join_timeout;
  while (!is_leaving()) {
    const auto left =
        std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    try {
      return options.open(std::clamp(left, milliseconds(100), kOneTry));
    } catch (const StoreGone& error) {
      if (Clock::now() >= deadline) throw_not_reached(options, error.what());
    }
    sleep();
  }
  return nullptr;
}

void NodeLink::Shared::talk(NodeGroup& group) {
  while (!is_leaving()) {
    while (auto command = next_command()) (*command)(group);
    if (auto event = group.poll(Clock::now())) push(std::move(*event));
    note_answer();
    sleep();
  }
  while (auto command = next_command()) (*command)(group);
}

void NodeLink::Shared::part(NodeGroup& group, bool hosts) {
  group.leave();
  while (hosts && !group.others_have_left(Clock::now())) {
    note_answer();
    std::this_thread::sleep_for(options.poll_interval);
  }
}

void NodeLink::Shared::run() {
  try {
    const std::unique_ptr<NodeStore> store = connect();
    if (store) {
      NodeGroup group(*store, options.group);
      talk(group);
      part(group, store->hosted_here());
    }
  } catch (const LaunchError& error) {
    push({.outcome = {Outcome::Kind::not_met, error.exit_code(), 0,
                      error.what()}});
  } catch (const std::exception& error) {
    push({.outcome = {
              Outcome::Kind::not_met, kExitNodeLost, 0,
              str("the store of the job at ", options.address, " is gone (",
                  error.what(), "): the launcher of that node has ended")}});
  }
  const std::lock_guard lock(mutex);
  ended = true;
  changed.notify_all();
}

NodeLink::NodeLink(const NodeLinkOptions& options)
    : shared_(std::make_shared<Shared>(options)) {
  std::thread([shared = shared_] { shared->run(); }).detach();
}

NodeLink::~NodeLink() { leave(); }

void NodeLink::leave() {
  const std::lock_guard lock(shared_->mutex);
  if (!shared_->leaving) shared_->last_answer = Clock::now();
  shared_->leaving = true;
  shared_->changed.notify_all();
}

bool NodeLink::ended() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->ended;
}

bool NodeLink::has_left() const {
  const std::lock_guard lock(shared_->mutex);
  const milliseconds longest =
      shared_->options.group.dead_after + std::chrono::seconds(5);
  return shared_->ended || !shared_->connected ||
         Clock::now() - shared_->last_answer > longest;
}

void NodeLink::join(int round, int num_restarts) {
  shared_->command(
      [=](NodeGroup& group) { group.join(round, Clock::now(), num_restarts); });
}

void NodeLink::say_done() {
  shared_->command([](NodeGroup& group) { group.say_done(); });
}

void NodeLink::say_over(const Outcome& outcome) {
  shared_->command([outcome](NodeGroup& group) { group.say_over(outcome); });
}

int NodeLink::fd() const { return shared_->event_fd.get(); }

std::optional<NodeEvent> NodeLink::next() {
  const std::lock_guard lock(shared_->mutex);
  uint64_t ignored = 0;
  (void)!::read(fd(), &ignored, sizeof(ignored));
  if (!shared_->events.empty()) {
    NodeEvent event = std::move(shared_->events.front());
    shared_->events.pop_front();
    return event;
  }
  const bool silent =
      shared_->connected && !shared_->ended &&
      Clock::now() - shared_->last_answer > shared_->options.group.dead_after;
  if (!silent) return std::nullopt;
  shared_->connected = false;  // said once
  return NodeEvent{
      .outcome = {Outcome::Kind::not_met, kExitNodeLost, 0,
                  str("the store of the job at ", shared_->options.address,
                      " does not answer any more")}};
}

}  // namespace tessera::launch
