#include "tessera/checkpoint/async_saver.h"

#include <ATen/core/grad_mode.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/state_source.h"

namespace tessera::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;

void rethrow(const std::exception_ptr& failure) {
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

// One save under way. Of the saver the thread touches only the memory, which
// the saver leaves alone meanwhile.
struct AsyncSaver::Job {
  std::string path;
  Peers peers;
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  std::optional<StateSource> source;
  std::optional<FolderSave> folder;
  std::exception_ptr write_failure;   // of this rank's part
  std::exception_ptr commit_failure;  // on rank 0
  std::atomic<bool> written = false;  // this rank's part, or it failed
  std::atomic<bool> failed = false;
  std::atomic<bool> ended = false;
  std::jthread thread;  // last: it uses all of the above

  void run(const std::stop_token& stop, HostCopy& memory) {
    const at::NoGradGuard no_grad;
    try {
      folder->write_apart(source_in(memory));
    } catch (...) {
      write_failure = std::current_exception();
      failed = true;
    }
    written = true;
    written.notify_all();
    // Without its own part, rank 0 has nothing to wait for.
    if (peers.rank == 0 && !write_failure) commit(stop);
    ended = true;
  }

  // The file can be there before the copies are.
  [[nodiscard]] WriteSource source_in(HostCopy& memory) const {
    WriteSource copies = source->source();
    copies.box = [&memory, box = std::move(copies.box)](const std::string& key,
                                                        const Box& wanted) {
      memory.wait();
      return box(key, wanted);
    };
    return copies;
  }

  void commit(const std::stop_token& stop) {
    const auto deadline = Clock::now() + timeout;
    try {
      folder->commit_apart(peers.size, [&] {
        return !stop.stop_requested() && Clock::now() < deadline;
      });
    } catch (...) {
      commit_failure = std::current_exception();
      failed = true;
    }
  }
};

AsyncSaver::AsyncSaver(SaveOptions options, Staging staging)
    : options_(std::move(options)), staging_(staging) {}

AsyncSaver::~AsyncSaver() {
  if (job_ == nullptr) return;
  if (std::uncaught_exceptions() > 0) job_->thread.request_stop();
  job_->thread.join();
  try {
    rethrow(job_->write_failure);
    rethrow(job_->commit_failure);
  } catch (const std::exception& error) {
    log_error("checkpoint '", job_->path, "' was not saved: ", error.what());
  }
}

void AsyncSaver::save(const std::string& path, const State& state) {
  const at::NoGradGuard no_grad;
  wait();
  auto job = std::make_unique<Job>();
  job->path = path;
  job->peers = peers_of(state, options_.world);
  if (options_.world.defined()) job->timeout = options_.world.timeout();
  job->folder.emplace(
      path, job->peers,
      [&] {
        job->source.emplace(state);
        return job->source->offer();
      },
      SaveFolderOptions{.existing = options_.existing,
                        .num_threads = options_.num_threads,
                        .storage = options_.storage});
  job->source->snapshot(job->folder->own_items(), memory_);
  if (staging_ == Staging::before_later_work) before_change();
  job_ = std::move(job);
  job_->thread =
      std::jthread([job = job_.get(), this](const std::stop_token& stop) {
        job->run(stop, memory_);
      });
}

bool AsyncSaver::failed() const { return job_ != nullptr && job_->failed; }

bool AsyncSaver::saving() const { return job_ != nullptr && !job_->ended; }

// Rank 0 may wait for a note that a rank without room on its disk could not
// leave: when some part has failed, the job goes, and its thread with it.
void AsyncSaver::wait() {
  if (job_ == nullptr) return;
  const std::unique_ptr<Job> job = std::move(job_);
  job->written.wait(false);
  const std::string what = str("checkpoint::AsyncSaver to '", job->path, "'");
  (void)all_or_none(job->peers, what, [&] {
    rethrow(job->write_failure);
    return std::string();
  });
  job->thread.join();
  (void)all_or_none(job->peers, what, [&] {
    rethrow(job->commit_failure);
    return std::string();
  });
}

}  // namespace tessera::checkpoint
