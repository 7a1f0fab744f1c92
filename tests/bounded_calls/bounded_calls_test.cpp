// Calls that return, that throw, and that never return.
#include "tessera/comm/bounded_calls.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace tessera {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kPatience = 20s;  // never spent, where all is well

/// A call that returns when told to.
class Gate {
 public:
  [[nodiscard]] auto call() const {
    return [opened = opened_] { return opened.get(); };
  }
  void open(int value) { promise_.set_value(value); }

 private:
  std::promise<int> promise_;
  std::shared_future<int> opened_ = promise_.get_future().share();
};

TEST(BoundedCalls, ReturnsWhatACallReturnsAndThrows) {
  BoundedCalls calls;
  EXPECT_EQ(calls.run([] { return 3; }, kPatience), 3);
  EXPECT_THROW(
      (void)calls.run([]() -> int { throw std::out_of_range("row 7"); },
                      kPatience),
      std::out_of_range);
  EXPECT_EQ(calls.run([] { return std::string("again"); }, kPatience), "again");
  EXPECT_FALSE(calls.stuck());
}

TEST(BoundedCalls, LetsGoOfACallThatDoesNotReturnAndAsksNoMore) {
  Gate gate;
  std::atomic<int> asked = 0;
  {
    BoundedCalls calls;
    EXPECT_EQ(calls.run(gate.call(), 20ms), std::nullopt);
    EXPECT_TRUE(calls.stuck());
    const auto start = Clock::now();
    EXPECT_EQ(calls.run([&] { return ++asked; }, kPatience), std::nullopt);
    EXPECT_LT(Clock::now() - start, kPatience / 2);
  }
  EXPECT_EQ(asked, 0);
  gate.open(1);  // nobody listens any more
}

TEST(BoundedCalls, HurryShortensTheCallUnderWayAndAllLater) {
  Gate gate;
  BoundedCalls calls;
  std::promise<void> begun;
  const auto start = Clock::now();
  std::thread caller([&] {
    EXPECT_EQ(calls.run(
                  [&begun, call = gate.call()] {
                    begun.set_value();
                    return call();
                  },
                  kPatience),
              std::nullopt);
  });
  begun.get_future().wait();
  calls.hurry(20ms);
  caller.join();
  EXPECT_LT(Clock::now() - start, kPatience / 2);
  gate.open(1);
}

TEST(BoundedCalls, ServesManyCallersOneAfterTheOther) {
  BoundedCalls calls;
  int inside = 0;  // by one call at a time, so it needs no lock
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 8; ++caller) {
    callers.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        EXPECT_EQ(calls.run(
                      [&] {
                        const int before = inside++;
                        const bool alone = inside-- == before + 1;
                        return alone;
                      },
                      kPatience),
                  true);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(inside, 0);
}

}  // namespace
}  // namespace tessera
