// Host memory for activations: who may use what again.
#include "tessera/module/host_slots.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/device/capture.h"

namespace tessera::internal {
namespace {

constexpr int64_t kBytes = 1024;

/// As HostOffload does: the stream first.
class Slots {
 public:
  Slots() { (void)slots_.stream(at::kCPU); }
  const void* take_and_give_back(std::optional<uint64_t> capture,
                                 int64_t num_bytes = kBytes) {
    HostSlot slot = take(capture, num_bytes);
    const void* memory = slot.bytes.const_data_ptr();
    slots_.give_back(std::move(slot));
    return memory;
  }
  HostSlot take(std::optional<uint64_t> capture, int64_t num_bytes = kBytes) {
    return slots_.take(num_bytes, at::kCPU, capture);
  }
  void give_back(HostSlot slot) { slots_.give_back(std::move(slot)); }
  [[nodiscard]] int64_t num_bytes() const { return slots_.num_bytes(); }

 private:
  HostSlots slots_;
};

TEST(HostSlots, WhatIsTakenIsNobodyElses) {
  Slots slots;
  const HostSlot one = slots.take({});
  const HostSlot two = slots.take({});
  EXPECT_NE(one.bytes.const_data_ptr(), two.bytes.const_data_ptr());
  EXPECT_EQ(slots.num_bytes(), 2 * kBytes);
}

TEST(HostSlots, ACaptureTakesOverWhatStepsBeforeItHad) {
  Slots slots;
  const void* eager = slots.take_and_give_back({});
  EXPECT_EQ(slots.take_and_give_back(7), eager);
  EXPECT_EQ(slots.take_and_give_back(7), eager) << "its next micro-batch";
}

// A replay writes there while a step outside of the graph keeps something.
TEST(HostSlots, WhatAGraphHasCapturedIsItsOwn) {
  Slots slots;
  (void)slots.take_and_give_back({});
  const void* captured = slots.take_and_give_back(7);
  const void* eager = slots.take_and_give_back({});
  EXPECT_NE(eager, captured);
  EXPECT_EQ(slots.take_and_give_back(8), eager) << "another graph";
  EXPECT_EQ(slots.take_and_give_back(7), captured);
  EXPECT_EQ(slots.num_bytes(), 2 * kBytes);
}

TEST(HostSlots, WhatAGraphThatIsGoneHadIsFree) {
  Slots slots;
  (void)slots.take_and_give_back({});
  const void* captured = slots.take_and_give_back(1007);
  note_graph_gone(1007);
  EXPECT_EQ(slots.take_and_give_back(1008), captured) << "captured anew";
  note_graph_gone(1008);
  EXPECT_EQ(slots.take_and_give_back({}), captured);
  EXPECT_EQ(slots.num_bytes(), kBytes);
}

TEST(HostSlots, ACaptureMakesNone) {
  Slots slots;
  EXPECT_THROW((void)slots.take(7), InvalidState);
  const HostSlot eager = slots.take({});
  EXPECT_THROW((void)slots.take(7), InvalidState) << "it is in use";
}

TEST(HostSlots, TheSmallestThatIsLargeEnoughIsTaken) {
  Slots slots;
  HostSlot large = slots.take({}, 4 * kBytes);
  HostSlot small = slots.take({}, kBytes);
  const void* large_memory = large.bytes.const_data_ptr();
  const void* small_memory = small.bytes.const_data_ptr();
  slots.give_back(std::move(large));
  slots.give_back(std::move(small));
  EXPECT_EQ(slots.take_and_give_back({}, kBytes - 1), small_memory);
  EXPECT_EQ(slots.take_and_give_back({}, kBytes + 1), large_memory);
  EXPECT_EQ(slots.num_bytes(), 5 * kBytes);
  // None is large enough: the largest makes place.
  (void)slots.take_and_give_back({}, 8 * kBytes);
  EXPECT_EQ(slots.num_bytes(), (1 + 8) * kBytes);
}

}  // namespace
}  // namespace tessera::internal
