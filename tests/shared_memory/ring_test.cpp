// The parts: a ring of bytes, memory of another process, a bell.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "tessera/comm/byte_ring.h"
#include "tessera/comm/doorbell.h"
#include "tessera/comm/shared_memory.h"

namespace tessera {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

struct alignas(64) RingMemory {
  std::array<std::byte, 128 + 4096> bytes{};
};

/// The n-th byte of a stream that does not repeat with the ring's capacity.
std::byte byte_at(size_t n) { return static_cast<std::byte>(n * 131 >> 3); }

TEST(ByteRing, TakesWhatFitsAndGivesWhatIsThere) {
  for (const size_t capacity : {1UL, 2UL, 64UL, 4096UL}) {
    RingMemory memory;
    ByteRing ring(memory.bytes.data(), capacity);
    std::vector<std::byte> in(capacity + 3);
    for (size_t i = 0; i < in.size(); ++i) in[i] = byte_at(i);
    EXPECT_EQ(ring.readable(), 0U);
    EXPECT_EQ(ring.write(in.data(), in.size()), capacity);
    EXPECT_EQ(ring.write(in.data(), in.size()), 0U);
    EXPECT_EQ(ring.readable(), capacity);
    std::vector<std::byte> out(capacity + 3);
    EXPECT_EQ(ring.read(out.data(), out.size()), capacity);
    EXPECT_EQ(ring.read(out.data(), out.size()), 0U);
    out.resize(capacity);
    in.resize(capacity);
    EXPECT_EQ(in, out);
  }
}

TEST(ByteRing, KeepsTheOrderOfAStreamBetweenTwoThreads) {
  constexpr size_t kBytes = 1 << 20;
  RingMemory memory;
  const size_t capacity = 1024;
  std::thread writer([&] {
    ByteRing ring(memory.bytes.data(), capacity);
    std::mt19937 random(1);
    std::vector<std::byte> piece(3000);
    for (size_t at = 0; at < kBytes;) {
      const size_t n = std::min<size_t>(random() % 3000, kBytes - at);
      for (size_t i = 0; i < n; ++i) piece[i] = byte_at(at + i);
      const size_t taken = ring.write(piece.data(), n);
      at += taken;
      if (taken == 0) std::this_thread::yield();
    }
  });
  ByteRing ring(memory.bytes.data(), capacity);
  std::mt19937 random(2);
  std::vector<std::byte> piece(3000);
  size_t wrong = 0;
  for (size_t at = 0; at < kBytes;) {
    const size_t given = ring.read(piece.data(), random() % 3000);
    for (size_t i = 0; i < given; ++i) wrong += piece[i] != byte_at(at + i);
    at += given;
    if (given == 0) std::this_thread::yield();
  }
  writer.join();
  EXPECT_EQ(wrong, 0U);
  EXPECT_EQ(ring.readable(), 0U);
}

/// The exit code of `body` in a process of its own.
template <class Body>
int in_child(Body&& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST(SharedMemory, IsReadAndWrittenByAnotherProcess) {
  SharedMemory mine(1000);
  EXPECT_EQ(mine.size(), 1000U);
  EXPECT_EQ(mine.data()[999], std::byte{0});
  mine.data()[7] = std::byte{42};
  EXPECT_EQ(in_child([&] {
              const auto theirs = SharedMemory::open(mine.address());
              if (!theirs || theirs->maker() != mine.maker()) return 1;
              if (theirs->data()[7] != std::byte{42}) return 2;
              theirs->data()[999] = std::byte{43};
              return 0;
            }),
            0);
  EXPECT_EQ(mine.data()[999], std::byte{43});
}

TEST(SharedMemory, StaysWithWhoOpenedItWhenItsMakerIsGone) {
  std::optional<SharedMemory> theirs;
  {
    SharedMemory mine(64);
    mine.data()[0] = std::byte{9};
    theirs = SharedMemory::open(mine.address());
  }
  ASSERT_TRUE(theirs);
  EXPECT_EQ(theirs->data()[0], std::byte{9});
}

TEST(SharedMemory, IsNotFoundWhereItIsNot) {
  SharedMemory mine(64);
  const std::string address = mine.address();
  EXPECT_TRUE(SharedMemory::open(address));
  EXPECT_FALSE(SharedMemory::open(""));
  EXPECT_FALSE(SharedMemory::open("another-machine" + address));
  const auto last = address.rfind(':');
  EXPECT_FALSE(SharedMemory::open(address.substr(0, last)));
  EXPECT_FALSE(SharedMemory::open(address.substr(0, last) + ":1"));
  mine.close_door();
  EXPECT_FALSE(SharedMemory::open(address));
}

// The number of a closed file goes to the next file that is opened.
TEST(SharedMemory, IsNotMistakenForAFileThatTookItsNumber) {
  SharedMemory mine(64);
  const std::string address = mine.address();
  mine.close_door();
  const SharedMemory other(64);  // takes the number
  EXPECT_FALSE(SharedMemory::open(address));
  EXPECT_TRUE(SharedMemory::open(other.address()));
}

Doorbell& bell_in(const SharedMemory& memory) {
  return *reinterpret_cast<Doorbell*>(memory.data());
}

TEST(Doorbell, WakesASleeperOfAnotherProcessAtOnce) {
  const SharedMemory memory(sizeof(Doorbell));
  Doorbell& bell = bell_in(memory);
  const pid_t child = ::fork();
  if (child == 0) {
    std::this_thread::sleep_for(50ms);
    bell.ring();
    ::_exit(0);
  }
  const auto start = Clock::now();
  bell.sleep(0, 20s);
  EXPECT_EQ(bell.count(), 1U);
  EXPECT_LT(Clock::now() - start, 15s);
  ::waitpid(child, nullptr, 0);
}

TEST(Doorbell, LosesNoRingBetweenTheLookAndTheSleep) {
  const SharedMemory memory(sizeof(Doorbell));
  Doorbell& bell = bell_in(memory);
  const uint32_t seen = bell.count();
  bell.ring();
  const auto start = Clock::now();
  bell.sleep(seen, 20s);
  EXPECT_LT(Clock::now() - start, 15s);
}

TEST(Doorbell, SleepsNoLongerThanAsked) {
  const SharedMemory memory(sizeof(Doorbell));
  const auto start = Clock::now();
  bell_in(memory).sleep(0, 30ms);
  EXPECT_GE(Clock::now() - start, 30ms);
  EXPECT_EQ(bell_in(memory).count(), 0U);
}

}  // namespace
}  // namespace tessera
