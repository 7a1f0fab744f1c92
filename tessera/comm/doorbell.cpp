#include "tessera/comm/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace tessera {
namespace {

constexpr int kSpins = 200;

// Not the private kind: the word is shared between processes.
void futex(std::atomic<uint32_t>& word, int operation, uint32_t value,
           const timespec* timeout) {
  static_assert(sizeof(word) == sizeof(uint32_t));
  ::syscall(SYS_futex, &word, operation, value, timeout, nullptr, 0);
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

void Doorbell::ring() noexcept {
  rings_.fetch_add(1);
  if (sleepers_.load() > 0) futex(rings_, FUTEX_WAKE, INT_MAX, nullptr);
}

void Doorbell::sleep(uint32_t seen,
                     std::chrono::milliseconds at_most) noexcept {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (rings_.load() != seen) return;
    pause();
  }
  const timespec timeout{at_most.count() / 1000,
                         at_most.count() % 1000 * 1'000'000};
  sleepers_.fetch_add(1);
  futex(rings_, FUTEX_WAIT, seen, &timeout);
  sleepers_.fetch_sub(1);
}

void Doorbell::close() noexcept { closed_.store(1); }

}  // namespace tessera
