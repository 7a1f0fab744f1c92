#include "tessera/comm/rendezvous.h"

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

namespace tessera {
namespace {

using namespace std::chrono_literals;

/// As the store of a process: once that has ended, nobody gets an answer.
class MortalStore final : public c10d::Store {
 public:
  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::intrusive_ptr<MortalStore>::reclaim_copy(this);
  }
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    alive().set(key, value);
  }
  std::vector<uint8_t> get(const std::string& key) override {
    return alive().get(key);
  }
  int64_t add(const std::string& key, int64_t value) override {
    return alive().add(key, value);
  }
  bool deleteKey(const std::string& key) override {
    return alive().deleteKey(key);
  }
  bool check(const std::vector<std::string>& keys) override {
    return alive().check(keys);
  }
  int64_t getNumKeys() override { return alive().getNumKeys(); }
  void wait(const std::vector<std::string>& keys) override {
    alive().wait(keys);
  }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    alive().wait(keys, timeout);
  }

  void die() { dead_ = true; }

 private:
  c10d::Store& alive() {
    if (dead_) throw std::runtime_error("the store is gone");
    return *store_;
  }

  c10::intrusive_ptr<c10d::HashStore> store_ =
      c10::make_intrusive<c10d::HashStore>();
  std::atomic<bool> dead_ = false;
};

/// Parts `ranks` of a world of `size`, rank 0 the last to come; its return ends
/// the store. How many could not end in peace.
int num_disturbed(const std::vector<int>& ranks, int size) {
  const auto store = c10::make_intrusive<MortalStore>();
  std::atomic<int> disturbed = 0;
  std::vector<std::thread> threads;
  for (const int rank : ranks) {
    threads.emplace_back([&, rank] {
      Rendezvous end(store, rank, size, 10s, [] { return false; });
      if (rank == 0) std::this_thread::sleep_for(30ms);
      try {
        end.part("end", [] {});
      } catch (const std::exception&) {
        ++disturbed;
      }
      if (rank == 0) store->die();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return disturbed;
}

TEST(Rendezvous, TheStoreOutlivesTheNeedOfEveryRankThatParts) {
  for (const int size : {1, 2, 3, 4}) {
    std::vector<int> ranks;
    for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
    for (int i = 0; i < 10; ++i) EXPECT_EQ(num_disturbed(ranks, size), 0);
  }
}

TEST(Rendezvous, ARankThatDiesWhilePartingHoldsNobodyUpForLong) {
  const auto store = c10::make_intrusive<MortalStore>();
  std::thread dies([&] {  // it came, and was never told
    store->set("barrier/end/0/1", std::vector<uint8_t>{1});
    (void)store->add("barrier/end/0/count", 1);
  });
  dies.join();
  const auto begin = std::chrono::steady_clock::now();
  Rendezvous(store, 0, 2, 60s, [] { return false; }).part("end", [] {});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
}

}  // namespace
}  // namespace tessera
