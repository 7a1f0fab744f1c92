// Messages between ranks of one machine, in processes and in threads.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <numeric>
#include <thread>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/host_link.h"

namespace tessera {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Bytes = std::vector<std::byte>;

constexpr auto kTimeout = 20s;

Bytes pattern(size_t bytes, int seed) {
  Bytes data(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    data[i] = static_cast<std::byte>((i * 31 + seed) >> 2);
  }
  return data;
}

/// Ranks as objects of one process, joined by `num_groups` communicators.
class Links {
 public:
  explicit Links(int size, int num_groups = 1) : links(size) {
    for (auto& link : links) link = std::make_unique<HostLink>();
    for (int group = 0; group < num_groups; ++group) add_group();
  }

  /// A message over `tensor`, of those that `count` waits for.
  static Message message(Bytes& data, uint64_t tag,
                         const std::shared_ptr<MessageCount>& count) {
    ++*count;
    return {.data = data.data(),
            .bytes = data.size(),
            .tag = tag,
            .memory = nullptr,
            .count = count};
  }

  std::vector<std::unique_ptr<HostLink>> links;
  std::vector<std::vector<HostChannels>> groups;  // [group][rank][peer]

 private:
  void add_group() {
    const int size = static_cast<int>(links.size());
    std::vector<HostOffer> offers;
    std::vector<std::string> texts;
    std::vector<std::string> reached;
    for (const auto& link : links) {
      offers.push_back(link->offer(size));
      texts.push_back(offers.back().text());
    }
    for (int rank = 0; rank < size; ++rank) {
      reached.push_back(links[rank]->reach(offers[rank], texts, rank));
    }
    auto& group = groups.emplace_back();
    for (int rank = 0; rank < size; ++rank) {
      group.push_back(links[rank]->connect(std::move(offers[rank]), reached));
    }
  }
};

std::shared_ptr<MessageCount> new_count() {
  return std::make_shared<MessageCount>(0);
}

TEST(HostLink, CarriesMessagesOfAllSizesInOrderBetweenAllRanks) {
  for (const int size : {2, 3, 4}) {
    Links world(size);
    const auto run = [&](int rank) {
      HostLink& link = *world.links[rank];
      for (const size_t bytes :
           {1UL, 15UL, 4096UL, 5'000'001UL, 12'345'678UL}) {
        const auto count = new_count();
        std::vector<Bytes> out(size);
        std::vector<Bytes> in(size);
        for (int peer = 0; peer < size; ++peer) {
          if (peer == rank) continue;
          auto& channel = *world.groups[0][rank][peer];
          out[peer] = pattern(bytes, 10 * rank + peer);
          in[peer].resize(bytes);
          link.receive(channel, Links::message(in[peer], bytes, count));
          link.send(channel, Links::message(out[peer], bytes, count));
        }
        link.wait(*count, kTimeout);
        for (int peer = 0; peer < size; ++peer) {
          if (peer == rank) continue;
          if (in[peer] != pattern(bytes, 10 * peer + rank)) return false;
        }
      }
      return true;
    };
    std::vector<std::future<bool>> ranks;
    for (int rank = 0; rank < size; ++rank) {
      ranks.push_back(std::async(std::launch::async, run, rank));
    }
    for (auto& rank : ranks) EXPECT_TRUE(rank.get()) << size << " ranks";
  }
}

// Rank 0 waits in group 0 while a large message of its own is still on its way
// in group 1, whose receipt is what rank 1 waits for before it answers.
TEST(HostLink, WaitingInOneGroupDeliversWhatIsDeferredInAnother) {
  Links world(2, 2);
  Bytes large = pattern(20'000'000, 1);
  Bytes large_in(large.size());
  Bytes small = pattern(8, 2);
  Bytes small_in(small.size());
  auto first = std::async(std::launch::async, [&] {
    HostLink& link = *world.links[0];
    const auto sent = new_count();
    link.send(*world.groups[1][0][1], Links::message(large, 1, sent));
    const auto answer = new_count();
    link.receive(*world.groups[0][0][1], Links::message(small_in, 2, answer));
    link.wait(*answer, kTimeout);
    link.wait(*sent, kTimeout);
  });
  auto second = std::async(std::launch::async, [&] {
    HostLink& link = *world.links[1];
    const auto received = new_count();
    link.receive(*world.groups[1][1][0], Links::message(large_in, 1, received));
    link.wait(*received, kTimeout);
    const auto sent = new_count();
    link.send(*world.groups[0][1][0], Links::message(small, 2, sent));
    link.wait(*sent, kTimeout);
  });
  EXPECT_NO_THROW(first.get());
  EXPECT_NO_THROW(second.get());
  EXPECT_TRUE(large == large_in);
  EXPECT_TRUE(small == small_in);
}

template <class Body>
std::string comm_error_of(Body&& body) {
  try {
    body();
  } catch (const CommError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(HostLink, UnlikeMessagesNeverMeet) {
  for (const bool other_tag : {true, false}) {
    Links world(2);
    Bytes out = pattern(64, 3);
    Bytes in(other_tag ? 64 : 32, std::byte{7});
    const auto count = new_count();
    world.links[0]->send(*world.groups[0][0][1],
                         Links::message(out, 1, new_count()));
    HostLink& link = *world.links[1];
    link.receive(*world.groups[0][1][0],
                 Links::message(in, other_tag ? 2 : 1, count));
    EXPECT_EQ(comm_error_of([&] { link.wait(*count, 100ms); }),
              "timed out after 100 ms");
    EXPECT_TRUE(in == Bytes(in.size(), std::byte{7}));
  }
}

TEST(HostLink, AWaitEndsWhenThePeerLeaves) {
  Links world(2);
  Bytes in(8);
  const auto count = new_count();
  HostLink& link = *world.links[0];
  link.receive(*world.groups[0][0][1], Links::message(in, 1, count));
  world.groups[0][1].clear();
  world.links[1].reset();
  const auto start = Clock::now();
  EXPECT_EQ(comm_error_of([&] { link.wait(*count, kTimeout); }),
            "rank 1 of the group is gone");
  EXPECT_LT(Clock::now() - start, 10s);
}

TEST(HostLink, GivesWhatAPeerSentBeforeItLeft) {
  Links world(2);
  Bytes out = pattern(100'000, 5);
  Bytes in(out.size());
  world.links[1]->send(*world.groups[0][1][0],
                       Links::message(out, 1, new_count()));
  world.groups[0][1].clear();
  world.links[1].reset();
  const auto count = new_count();
  HostLink& link = *world.links[0];
  link.receive(*world.groups[0][0][1], Links::message(in, 1, count));
  EXPECT_NO_THROW(link.wait(*count, kTimeout));
  EXPECT_TRUE(in == out);
}

TEST(HostLink, AbortFromAnotherThreadEndsAWait) {
  Links world(2);
  Bytes in(8);
  const auto count = new_count();
  HostLink& link = *world.links[0];
  link.receive(*world.groups[0][0][1], Links::message(in, 1, count));
  std::thread other([&] {
    std::this_thread::sleep_for(30ms);
    link.abort();
  });
  EXPECT_EQ(comm_error_of([&] { link.wait(*count, kTimeout); }),
            "the wait was aborted");
  other.join();
}

// Two processes that tell each other their offers through pipes.
struct Pipe {
  Pipe() {
    if (::pipe(ends) != 0) throw std::runtime_error("pipe");
  }
  void put(const std::string& line) const {
    const std::string text = line + "\n";
    if (::write(ends[1], text.data(), text.size()) < 0) std::abort();
  }
  [[nodiscard]] std::string get() const {
    std::string line;
    for (char c = 0; ::read(ends[0], &c, 1) == 1 && c != '\n';) line += c;
    return line;
  }
  int ends[2];
};

struct Neighbour {
  HostLink link;
  HostChannels channels;

  Neighbour(int self, const Pipe& to_peer, const Pipe& from_peer) {
    HostOffer offer = link.offer(2);
    const auto swap = [&](const std::string& own) {
      to_peer.put(own);
      std::vector<std::string> both(2);
      both[self] = own;
      both[1 - self] = from_peer.get();
      return both;
    };
    const auto texts = swap(offer.text());
    const auto reached = swap(link.reach(offer, texts, self));
    channels = link.connect(std::move(offer), reached);
  }
};

TEST(HostLink, AProcessThatIsKilledIsNoticedLongBeforeTheTimeOut) {
  const Pipe down;
  const Pipe up;
  const pid_t child = ::fork();
  if (child == 0) {
    const Neighbour self(1, up, down);
    for (;;) ::pause();
  }
  Neighbour self(0, down, up);
  ASSERT_TRUE(self.channels[1]);
  Bytes in(8);
  const auto count = new_count();
  self.link.receive(*self.channels[1], Links::message(in, 1, count));
  EXPECT_EQ(comm_error_of([&] { self.link.wait(*count, 50ms); }),
            "timed out after 50 ms");
  ::kill(child, SIGKILL);  // and nobody reaps it yet
  const auto start = Clock::now();
  EXPECT_EQ(comm_error_of([&] { self.link.wait(*count, kTimeout); }),
            "rank 1 of the group is gone");
  EXPECT_LT(Clock::now() - start, 10s);
  ::waitpid(child, nullptr, 0);
}

TEST(HostLink, TwoProcessesExchangeMessagesLargerThanTheirRings) {
  constexpr size_t kBytes = 9'000'000;
  const Pipe down;
  const Pipe up;
  const auto trade = [&](int self, const Pipe& to_peer, const Pipe& from_peer) {
    Neighbour rank(self, to_peer, from_peer);
    if (!rank.channels[1 - self]) return 1;
    for (int round = 0; round < 5; ++round) {
      Bytes out = pattern(kBytes, self + round);
      Bytes in(kBytes);
      const auto count = new_count();
      auto& channel = *rank.channels[1 - self];
      rank.link.receive(channel, Links::message(in, round, count));
      rank.link.send(channel, Links::message(out, round, count));
      rank.link.wait(*count, kTimeout);
      if (in != pattern(kBytes, 1 - self + round)) return 2;
    }
    return 0;
  };
  const pid_t child = ::fork();
  if (child == 0) ::_exit(trade(1, up, down));
  EXPECT_EQ(trade(0, down, up), 0);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace tessera
