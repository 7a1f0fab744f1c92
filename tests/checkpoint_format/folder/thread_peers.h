// Ranks that are threads and meet in memory; a small state that they save.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/checkpoint/item.h"
#include "tessera/checkpoint/reader.h"
#include "tessera/checkpoint/save_folder.h"

namespace tessera::checkpoint {

/// Where the threads meet. One that leaves for good ends the wait of the
/// others.
class MeetingPoint {
 public:
  explicit MeetingPoint(int size) : size_(size), given_(size) {}

  std::vector<std::string> exchange(int rank, std::string_view bytes) {
    std::unique_lock lock(mutex_);
    given_[rank] = bytes;
    const int64_t round = round_;
    if (++num_here_ == size_) {
      result_ = given_;
      num_here_ = 0;
      ++round_;
      changed_.notify_all();
    }
    const bool met = changed_.wait_for(lock, std::chrono::seconds(20), [&] {
      return round_ != round || gone_;
    });
    require<CommError>(met && round_ != round,
                       [] { return str("a peer is gone"); });
    return result_;
  }

  void leave() {
    const std::lock_guard lock(mutex_);
    gone_ = true;
    changed_.notify_all();
  }

 private:
  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> given_;
  std::vector<std::string> result_;
  int num_here_ = 0;
  int64_t round_ = 0;
  bool gone_ = false;
};

/// Runs `body` on threads. Returns what each threw, as text; "" for nothing.
inline std::vector<std::string> run_peers(
    int size, const std::function<void(const Peers&)>& body) {
  MeetingPoint point(size);
  std::vector<std::string> errors(size);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const Peers peers{rank, size, [&, rank](std::string_view bytes) {
                          return point.exchange(rank, bytes);
                        }};
      try {
        body(peers);
      } catch (const std::exception& error) {
        errors[rank] = error.what();
        point.leave();
      }
    });
  }
  threads.clear();
  return errors;
}

/// A tensor of bytes 0, 1, 2, ... (times `factor`) of size [rows, 3], cut along
/// its rows; and a value.
struct SmallState {
  int64_t rows = 5;
  int factor = 1;

  [[nodiscard]] Box box_of(int rank, int ranks) const {
    const int64_t most = (rows + ranks - 1) / ranks;
    const int64_t begin = std::min(rank * most, rows);
    return {{begin, 0}, {std::min(most, rows - begin), 3}};
  }
  [[nodiscard]] std::vector<std::byte> bytes_of(const Box& box) const {
    std::vector<std::byte> bytes;
    for (int64_t i = 0; i < box.numel(); ++i) {
      bytes.push_back(
          static_cast<std::byte>((box.offsets[0] * 3 + i) * factor));
    }
    return bytes;
  }
  [[nodiscard]] Offer offer(int rank, int ranks) const {
    return {.tensors = {{"model.w",
                         {"model", "w"},
                         Dtype::uint8,
                         {rows, 3},
                         {box_of(rank, ranks)}}},
            .values = {{"step", {"step"}, str(factor), str(factor)}}};
  }
  [[nodiscard]] WriteSource source() const {
    return {.value =
                [this](const std::string&) {
                  return write_value_item(Value(factor));
                },
            .box =
                [this](const std::string&, const Box& box) {
                  auto keep =
                      std::make_shared<std::vector<std::byte>>(bytes_of(box));
                  return in_host_memory({*keep, keep});
                }};
  }
};

inline void save_small(const std::string& path, const Peers& peers,
                       const SmallState& state,
                       const SaveFolderOptions& options = {}) {
  const WriteSource source = state.source();
  FolderSave save(
      path, peers, [&] { return state.offer(peers.rank, peers.size); },
      options);
  save.commit(peers, [&] { return save.write(source); });
}

/// Compares all that lies at `path` with `state`. Returns what is wrong, or "".
inline std::string compare_small(const std::string& path,
                                 const SmallState& state) {
  try {
    const CheckpointReader reader(path);
    (void)reader.verify();
    const Box whole{{0, 0}, {state.rows, 3}};
    std::vector<std::byte> bytes(whole.numel());
    reader.read_box("model.w", whole, bytes);
    if (bytes != state.bytes_of(whole)) return "other bytes";
    const Value step = reader.read_value("step", OnUnknown::refuse);
    return step == Value(state.factor) ? "" : "other value " + step.show();
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace tessera::checkpoint
