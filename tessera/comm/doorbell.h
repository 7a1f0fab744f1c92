// Wakes a rank that waits for shared memory to change.
//
// It lies in memory that the ranks of one machine share, zero bytes at first:
//
//   seen = bell.count();  look;  nothing there?  bell.sleep(seen, 20ms);
//
// A ring between the look and the sleep is not lost: the count has moved.
// Torch-free.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tessera {

class Doorbell {
 public:
  [[nodiscard]] uint32_t count() const noexcept { return rings_.load(); }

  /// For the neighbours of the rank that sleeps: something has changed.
  void ring() noexcept;

  /// Returns when the count differs from `seen`, or after `at_most`. Spins for
  /// some microseconds first, since an answer is mostly near.
  void sleep(uint32_t seen, std::chrono::milliseconds at_most) noexcept;

  /// The owner is leaving and answers no more.
  void close() noexcept;
  [[nodiscard]] bool closed() const noexcept { return closed_.load() != 0; }

 private:
  std::atomic<uint32_t> rings_;
  std::atomic<uint32_t> sleepers_;
  std::atomic<uint32_t> closed_;
};

}  // namespace tessera
