#include "tessera/comm/rendezvous.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <thread>
#include <utility>

#include "tessera/base/error.h"

namespace tessera {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Between two looks at the store. It grows with the wait, so that nobody leaves
// later than by a sixteenth of it, and with the world, so that the looks of all
// ranks stay below 50000 a second at first and 10000 (or 50 a rank) later.
//
// Not Store::wait, which cannot be ended but by a time-out of its own, and each
// of those is two warnings in the log of the TCP store.
Clock::duration pause_after(Clock::duration waited, int size) {
  const Clock::duration least = size * microseconds(20);
  const Clock::duration most =
      std::max<Clock::duration>(milliseconds(20), size * microseconds(100));
  return std::clamp<Clock::duration>(waited / 16, least, most);
}

constexpr std::chrono::seconds kPartingPatience{5};

std::vector<uint8_t> to_bytes(std::string_view text) {
  return {text.begin(), text.end()};
}

}  // namespace

Rendezvous::Rendezvous(c10::intrusive_ptr<c10d::Store> store, int rank,
                       int size, milliseconds timeout,
                       std::function<bool()> is_cancelled)
    : store_(std::move(store)),
      rank_(rank),
      size_(size),
      timeout_(timeout),
      is_cancelled_(std::move(is_cancelled)) {}

std::vector<std::string> Rendezvous::exchange(const std::string& key,
                                              std::string_view bytes) {
  if (size_ == 1) return {std::string(bytes)};
  const Meeting meeting = next_meeting("exchange", key);
  arrive(meeting, bytes, timeout_);
  std::vector<std::string> result = values(meeting);
  leave(meeting);
  return result;
}

void Rendezvous::barrier(const std::string& key) { barrier(key, timeout_); }

void Rendezvous::barrier(const std::string& key, milliseconds timeout) {
  if (size_ == 1) return;
  const Meeting meeting = next_meeting("barrier", key);
  arrive(meeting, "here", timeout);
  leave(meeting);
}

void Rendezvous::part(const std::string& key,
                      const std::function<void()>& at_last) {
  if (size_ == 1) return;
  const Meeting meeting = next_meeting("barrier", key);
  arrive(meeting, "here", timeout_);
  at_last();
  const std::string told = key_of(meeting, "told");
  if (rank_ != 0) {
    store_->add(told, 1);  // the last that this rank asks of it
    return;
  }
  const auto begin = Clock::now();
  const auto waited = [&] { return Clock::now() - begin; };
  while (store_->add(told, 0) < size_ - 1 && waited() < kPartingPatience) {
    std::this_thread::sleep_for(pause_after(waited(), size_));
  }
}

Rendezvous::Meeting Rendezvous::next_meeting(const std::string& kind,
                                             const std::string& key) {
  Meeting meeting{.what = str(kind, " '", key, "'"),
                  .prefix = str(kind, "/", key, "/")};
  const std::lock_guard lock(mutex_);
  meeting.use = uses_[meeting.prefix]++;
  return meeting;
}

std::string Rendezvous::key_of(const Meeting& meeting, std::string_view part) {
  return str(meeting.prefix, meeting.use, "/", part);
}

std::vector<std::string> Rendezvous::keys_of_ranks(
    const Meeting& meeting) const {
  std::vector<std::string> keys;
  for (int rank = 0; rank < size_; ++rank) {
    keys.push_back(key_of(meeting, std::to_string(rank)));
  }
  return keys;
}

// The last to come tells the others by one key: a look is small in a large
// world, too.
void Rendezvous::arrive(const Meeting& meeting, std::string_view value,
                        milliseconds timeout) {
  store_->set(key_of(meeting, std::to_string(rank_)), to_bytes(value));
  const std::string all = key_of(meeting, "all");
  if (store_->add(key_of(meeting, "count"), 1) == size_) {
    store_->set(all, to_bytes("here"));
    return;
  }
  const auto begin = Clock::now();
  while (!store_->check({all})) {
    require<CommError>(!is_cancelled_(), [&] {
      return str(meeting.what, ": ended, because another rank failed.");
    });
    const auto waited = Clock::now() - begin;
    require<CommError>(waited < timeout, [&] {
      return str(meeting.what, ": not all ranks came within ", timeout.count(),
                 " ms.", missing(meeting));
    });
    std::this_thread::sleep_for(std::min<Clock::duration>(
        pause_after(waited, size_), timeout - waited));
  }
}

std::vector<std::string> Rendezvous::values(const Meeting& meeting) {
  const std::vector<std::string> keys = keys_of_ranks(meeting);
  std::vector<std::string> values;
  if (store_->hasExtendedApi()) {
    for (const auto& value : store_->multiGet(keys)) {
      values.emplace_back(value.begin(), value.end());
    }
    return values;
  }
  for (const std::string& key : keys) values.push_back(store_->get_to_str(key));
  return values;
}

// All ranks are in this use, so none still reads the one before.
void Rendezvous::leave(const Meeting& meeting) {
  if (meeting.use == 0) return;
  Meeting before = meeting;
  --before.use;
  store_->deleteKey(key_of(before, std::to_string(rank_)));
  if (rank_ != 0) return;
  store_->deleteKey(key_of(before, "count"));
  store_->deleteKey(key_of(before, "all"));
}

std::string Rendezvous::missing(const Meeting& meeting) {
  std::string ranks;
  const std::vector<std::string> keys = keys_of_ranks(meeting);
  for (size_t r = 0; r < keys.size(); ++r) {
    if (!store_->check({keys[r]})) ranks += str(ranks.empty() ? "" : ", ", r);
  }
  return ranks.empty() ? "" : str(" Missing: rank ", ranks, " of this group.");
}

}  // namespace tessera
