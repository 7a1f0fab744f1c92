// Counts the bytes that a thread's tensors take on CPU.
//
//   CountingAllocator counting;        // from here on
//   Bytes mine;
//   CountingAllocator::Scope scope(mine);
//   ...                                // what this thread allocates is
//   counted, mine.peak();                       // whichever thread frees it
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace tessera::test {

class Bytes {
 public:
  void add(int64_t bytes) {
    const int64_t now = state_->now += bytes;
    int64_t peak = state_->peak;
    while (now > peak && !state_->peak.compare_exchange_weak(peak, now)) {
    }
  }
  [[nodiscard]] int64_t now() const { return state_->now; }
  /// The most since the start or the last call.
  int64_t take_peak() { return state_->peak.exchange(state_->now); }

 private:
  // Outlives its user while counted memory is there.
  struct State {
    std::atomic<int64_t> now = 0;
    std::atomic<int64_t> peak = 0;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

class CountingAllocator final : public c10::Allocator {
 public:
  CountingAllocator() { c10::SetAllocator(c10::kCPU, this); }
  ~CountingAllocator() override { c10::SetAllocator(c10::kCPU, inner_); }
  CountingAllocator(const CountingAllocator&) = delete;
  CountingAllocator& operator=(const CountingAllocator&) = delete;

  class Scope {
   public:
    explicit Scope(Bytes& bytes) { counted() = &bytes; }
    ~Scope() { counted() = nullptr; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
  };

  c10::DataPtr allocate(size_t size) override {
    c10::DataPtr memory = inner_->allocate(size);
    void* data = memory.release_context();  // the memory itself
    if (Bytes* bytes = counted(); bytes && data) {
      bytes->add(static_cast<int64_t>(size));
      const std::lock_guard lock(table().mutex);
      table().blocks.insert({data, {*bytes, static_cast<int64_t>(size)}});
    }
    return {data, data, &release, c10::kCPU};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override {
    return &release;
  }
  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }

 private:
  struct Block {
    Bytes bytes;
    int64_t size;
  };
  struct Table {
    std::mutex mutex;
    std::unordered_map<void*, Block> blocks;
  };
  static Table& table() {
    static Table table;
    return table;
  }
  static void release(void* data) {
    if (!data) return;
    {
      const std::lock_guard lock(table().mutex);
      if (const auto found = table().blocks.extract(data)) {
        found.mapped().bytes.add(-found.mapped().size);
      }
    }
    c10::GetDefaultCPUAllocator()->raw_deleter()(data);
  }
  static Bytes*& counted() {
    thread_local Bytes* bytes = nullptr;
    return bytes;
  }

  c10::Allocator* inner_ = c10::GetDefaultCPUAllocator();
};

}  // namespace tessera::test
