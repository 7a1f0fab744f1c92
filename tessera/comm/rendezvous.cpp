#include "tessera/comm/rendezvous.h"

#include <torch/csrc/distributed/c10d/exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
constexpr milliseconds kSlice{500};

std::string key_of(const std::string& key, int64_t use, int rank) {
  return str("exchange/", key, "/", use, "/", rank);
}

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
  const int64_t use = next_use("exchange/" + key);
  std::vector<std::string> keys;
  for (int r = 0; r < size_; ++r) keys.push_back(key_of(key, use, r));
  store_->set(keys[rank_], to_bytes(bytes));
  wait_for(keys, "exchange '" + key + "'", timeout_);
  std::vector<std::string> result;
  for (const std::string& k : keys) result.push_back(store_->get_to_str(k));
  // All ranks are in this use, so none still reads the one before.
  if (use > 0) store_->deleteKey(key_of(key, use - 1, rank_));
  return result;
}

void Rendezvous::barrier(const std::string& key) { barrier(key, timeout_); }

void Rendezvous::barrier(const std::string& key, milliseconds timeout) {
  if (size_ == 1) return;
  const int64_t use = next_use("barrier/" + key);
  const auto name = [&](std::string_view part, int64_t u) {
    return str("barrier/", key, "/", u, "/", part);
  };
  store_->set(name(std::to_string(rank_), use), to_bytes("here"));
  if (store_->add(name("count", use), 1) == size_) {
    store_->set(name("all", use), to_bytes("here"));
  }
  try {
    wait_for({name("all", use)}, "barrier '" + key + "'", timeout);
  } catch (const CommError& error) {
    std::vector<std::string> keys;
    for (int r = 0; r < size_; ++r)
      keys.push_back(name(std::to_string(r), use));
    throw CommError(str(error.what(), missing(keys)));
  }
  if (use > 0) store_->deleteKey(name(std::to_string(rank_), use - 1));
  if (use > 0 && rank_ == 0) store_->deleteKey(name("count", use - 1));
  if (use > 0 && rank_ == 0) store_->deleteKey(name("all", use - 1));
}

int64_t Rendezvous::next_use(const std::string& key) {
  const std::lock_guard lock(mutex_);
  return uses_[key]++;
}

void Rendezvous::wait_for(const std::vector<std::string>& keys,
                          const std::string& what, milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  for (;;) {
    const auto left =
        std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    try {
      store_->wait(keys, std::clamp(left, milliseconds(1), kSlice));
      return;
    } catch (const c10::DistStoreError&) {
      // The slice is over.
    }
    require<CommError>(!is_cancelled_(), [&] {
      return str(what, ": ended, because another rank failed.");
    });
    require<CommError>(Clock::now() < deadline, [&] {
      return str(what, ": not all ranks came within ", timeout.count(), " ms.",
                 keys.size() > 1 ? missing(keys) : "");
    });
  }
}

std::string Rendezvous::missing(const std::vector<std::string>& keys) {
  std::string ranks;
  for (size_t r = 0; r < keys.size(); ++r) {
    if (!store_->check({keys[r]})) ranks += str(ranks.empty() ? "" : ", ", r);
  }
  return ranks.empty() ? "" : str(" Missing: rank ", ranks, " of this group.");
}

}  // namespace tessera
