#include "tessera/comm/collective_log.h"

#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/communicator.h"

namespace tessera {
namespace {

CollectiveEntry make_entry(std::string_view communicator, std::string_view kind,
                           const CallLabel& label, const CallTerms& terms) {
  CollectiveEntry entry;
  entry.communicator = communicator;
  entry.kind = kind;
  entry.unit = label.unit;
  entry.phase = label.phase;
  entry.op = label.op;
  entry.reduction = terms.reduction;
  entry.root = terms.root;
  entry.called = std::chrono::steady_clock::now();
  entry.started = entry.called;
  return entry;
}

void add_size(CollectiveEntry& entry, int64_t numel, c10::ScalarType dtype) {
  entry.numel = numel;
  entry.dtype = c10::toString(dtype);
  entry.num_bytes = numel * static_cast<int64_t>(c10::elementSize(dtype));
}

}  // namespace

uint64_t CollectiveLog::push(CollectiveEntry entry) {
  entry.sequence = ++sequence_;
  auto count = counts_.find(entry.communicator);
  if (count == counts_.end()) {
    count = counts_.emplace(entry.communicator, 0).first;
  }
  entry.index = ++count->second;
  ring_[sequence_ % kKept] = std::move(entry);
  return sequence_;
}

uint64_t CollectiveLog::enter(std::string_view communicator,
                              std::string_view kind, const CallLabel& label,
                              int64_t numel, c10::ScalarType dtype,
                              const CallTerms& terms) {
  CollectiveEntry entry = make_entry(communicator, kind, label, terms);
  add_size(entry, numel, dtype);
  const std::lock_guard lock(mutex_);
  auto hash = hashes_.find(communicator);
  if (hash == hashes_.end()) {
    hash = hashes_.emplace(communicator, FnvHash::kStart).first;
  }
  hash->second = FnvHash(hash->second)
                     .add(kind)
                     .add(label.unit)
                     .add(numel)
                     .add(static_cast<int64_t>(dtype))
                     .add(terms.reduction)
                     .add(int64_t{terms.root})
                     .value();
  return push(std::move(entry));
}

uint64_t CollectiveLog::enter_unhashed(std::string_view communicator,
                                       std::string_view kind,
                                       const CallLabel& label, int64_t numel,
                                       std::optional<c10::ScalarType> dtype,
                                       const CallTerms& terms) {
  CollectiveEntry entry = make_entry(communicator, kind, label, terms);
  if (dtype) add_size(entry, numel, *dtype);
  const std::lock_guard lock(mutex_);
  return push(std::move(entry));
}

uint64_t CollectiveLog::enter_again(CollectiveEntry entry) {
  const std::lock_guard lock(mutex_);
  entry.called = entry.started;
  entry.waited = true;
  entry.finished = false;
  waited_ = push(std::move(entry));
  return waited_;
}

void CollectiveLog::wait(uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  CollectiveEntry& entry = ring_[sequence % kKept];
  if (entry.sequence != sequence) return;
  if (!entry.waited) entry.started = std::chrono::steady_clock::now();
  entry.waited = true;
  waited_ = sequence;
}

void CollectiveLog::finish(uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  if (waited_ == sequence) waited_ = 0;
  CollectiveEntry& entry = ring_[sequence % kKept];
  if (entry.sequence != sequence || entry.finished) return;
  entry.finished = true;
  entry.ended = std::chrono::steady_clock::now();
}

CollectiveLog::Hashes CollectiveLog::hashes() const {
  const std::lock_guard lock(mutex_);
  return hashes_;
}

void CollectiveLog::put_back(const Hashes& hashes) {
  const std::lock_guard lock(mutex_);
  hashes_ = hashes;
}

uint64_t CollectiveLog::hash() const {
  const std::lock_guard lock(mutex_);
  FnvHash all;
  for (const auto& [communicator, hash] : hashes_) {
    all.add(communicator).add(static_cast<int64_t>(hash));
  }
  return all.value();
}

uint64_t CollectiveLog::hash(
    std::span<const std::string_view> communicators) const {
  const std::lock_guard lock(mutex_);
  FnvHash some;
  for (const std::string_view communicator : communicators) {
    const auto at = hashes_.find(communicator);
    if (at == hashes_.end()) continue;
    some.add(communicator).add(static_cast<int64_t>(at->second));
  }
  return some.value();
}

CollectiveEntry CollectiveLog::last() const {
  const std::lock_guard lock(mutex_);
  return ring_[sequence_ % kKept];
}

CollectiveEntry CollectiveLog::at(uint64_t sequence) const {
  const std::lock_guard lock(mutex_);
  const CollectiveEntry& entry = ring_[sequence % kKept];
  return entry.sequence == sequence ? entry : CollectiveEntry{};
}

CollectiveEntry CollectiveLog::position() const {
  const std::lock_guard lock(mutex_);
  const CollectiveEntry& waited = ring_[waited_ % kKept];
  const bool waits = waited_ > 0 && waited.sequence == waited_;
  return waits ? waited : ring_[sequence_ % kKept];
}

std::vector<CollectiveEntry> CollectiveLog::entries() const {
  const std::lock_guard lock(mutex_);
  std::vector<CollectiveEntry> entries;
  for (size_t i = 1; i <= kKept; ++i) {
    const CollectiveEntry& entry = ring_[(sequence_ + i) % kKept];
    if (entry.sequence > 0) entries.push_back(entry);
  }
  return entries;
}

std::string CollectiveLog::describe() const {
  const CollectiveEntry entry = position();
  if (entry.sequence == 0) return "no collective yet";
  const char* state = entry.finished ? "finished "
                      : entry.waited ? "waiting in "
                                     : "after issuing ";
  return str(state, entry.kind, " #", entry.sequence, " on ",
             entry.communicator, ", unit '", entry.unit, "', ", entry.phase,
             ", ", entry.op, ", ", entry.num_bytes, " bytes");
}

}  // namespace tessera
