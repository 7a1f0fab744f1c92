#include "tessera/comm/work.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/work_impl.h"
#include "tessera/module/gated_storage.h"

namespace tessera::distributed {

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
constexpr milliseconds kSlice{500};

}  // namespace

Work::Work() = default;
Work::Work(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Work::Work(Work&&) noexcept = default;
Work& Work::operator=(Work&&) noexcept = default;
Work::~Work() = default;

void Work::wait() {
  if (impl_) impl_->wait({});
}

void Work::wait(milliseconds timeout) {
  require<InvalidArgument>(timeout > milliseconds(0), [&] {
    return str("Work::wait: the time-out is ", timeout.count(),
               " ms; give more than 0.");
  });
  if (impl_) impl_->wait(timeout);
}

bool Work::is_completed() const { return !impl_ || impl_->is_completed(); }

bool Work::is_success() const { return is_completed() && !exception(); }

std::exception_ptr Work::exception() const {
  return impl_ ? impl_->exception() : nullptr;
}

int Work::source_rank() const {
  const int source = impl_ ? impl_->source_rank() : -1;
  require<InvalidState>(source >= 0, [] {
    return str(
        "Work::source_rank: only a finished irecv has a source; call "
        "wait first.");
  });
  return source;
}

Work::Impl::~Impl() {
  try {
    if (!ended_) {
      world_->log.wait(sequence_);
      wait_for_all({});
      world_->log.finish(sequence_);
    }
  } catch (const std::exception&) {
    // The result is not wanted; whoever waits for one learns of the failure.
  }
  // The end of a Gloo backend waits for its threads, and one of them is still
  // in this collective, until its time-out: such a backend of a failed world
  // stays.
  const bool stuck = gloo_ && !all_completed();
  if (stuck) static_cast<void>(gloo_.release());
}

void Work::Impl::add(c10::intrusive_ptr<c10d::Work> work,
                     c10::intrusive_ptr<c10d::Backend> gloo) {
  if (work) works_.push_back(std::move(work));
  gloo_ = std::move(gloo);
}

void Work::Impl::will_write(const at::Tensor& output) {
  note_write_below_gate(output);
  outputs_.push_back(output);
}

Transfer& Work::Impl::messages(
    const c10::intrusive_ptr<c10d::Backend>& backend) {
  if (!messages_) {
    auto routes = std::make_shared<Routes>();
    routes->backend = backend;
    messages_ =
        std::make_unique<Transfer>(world_->transfers, std::move(routes));
  }
  return *messages_;
}

void Work::Impl::wait(std::optional<milliseconds> timeout) {
  if (failure_) std::rethrow_exception(failure_);
  if (std::exchange(ended_, true)) return;
  world_->log.wait(sequence_);
  try {
    wait_for_all(timeout);
  } catch (const std::exception& error) {
    failure_ = std::current_exception();
    world_->raise(sequence_, reason_of(error));
  }
  world_->log.finish(sequence_);
  for (const at::Tensor& output : std::exchange(outputs_, {})) {
    note_write_below_gate(output);
  }
}

// Without a time-out of its own, a collective has that of its backend; a
// message has none there.
void Work::Impl::wait_for_all(std::optional<milliseconds> timeout) {
  if (messages_) {
    messages_->wait(timeout.value_or(timeout_));
    if (messages_->source() >= 0) source_ = messages_->source();
  }
  for (const auto& work : works_) wait_for(*work, timeout);
}

void Work::Impl::wait_for(c10d::Work& work,
                          std::optional<milliseconds> timeout) {
  if (gloo_) {
    wait_in_slices(work, timeout);
    return;
  }
  const bool ended = timeout ? work.wait(*timeout) : work.wait();
  if (!ended) throw CommError("the wait was aborted");
}

void Work::Impl::wait_in_slices(c10d::Work& work,
                                std::optional<milliseconds> timeout) {
  const auto begin = Clock::now();
  for (;;) {
    const auto spent =
        std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
    const auto left = timeout.value_or(spent + kSlice) - spent;
    try {
      work.wait(std::clamp(left, milliseconds(1), kSlice));
      return;
    } catch (const std::exception&) {
      if (work.exception()) throw;
    }
    if (work.isCompleted()) continue;
    require<CommError>(!world_->failed(), [] {
      return str("ended, because the job has failed.");
    });
    require<CommError>(left > kSlice || !timeout, [&] {
      return str("not done within ", timeout->count(), " ms.");
    });
  }
}

bool Work::Impl::is_completed() const {
  return ended_ || (!messages_ && all_completed());
}

bool Work::Impl::all_completed() const {
  return std::all_of(works_.begin(), works_.end(),
                     [](const auto& work) { return work->isCompleted(); });
}

std::exception_ptr Work::Impl::exception() const {
  if (failure_) return failure_;
  for (const auto& work : works_) {
    // Not isSuccess(), which NCCL's refuse to answer.
    if (!work->isCompleted()) continue;
    if (const auto failure = work->exception()) return failure;
  }
  return nullptr;
}

}  // namespace tessera::distributed
