// Host memory that activations are copied to, used again and again.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

namespace tessera::internal {

/// What a graph has captured copies to is its own while it lives: a replay
/// would write over what a step outside of it keeps there.
struct HostSlot {
  at::Tensor bytes;
  std::optional<uint64_t> capture;
};

/// Of one device. Thread-safe: forward takes, backward's thread gives back.
class HostSlots {
 public:
  HostSlots() = default;
  ~HostSlots();
  HostSlots(const HostSlots&) = delete;
  HostSlots& operator=(const HostSlots&) = delete;

  /// Of `num_bytes` or more, for a step that goes into the graph `capture`, or
  /// into none; behind a call of `stream`. All copies to and from slots go on
  /// `stream`, one after the other: so one that is given back while it is still
  /// being read may be taken at once.
  ///
  /// Errors: InvalidState in a capture for which none is free.
  [[nodiscard]] HostSlot take(int64_t num_bytes, c10::Device device,
                              const std::optional<uint64_t>& capture);
  void give_back(HostSlot slot);
  [[nodiscard]] c10::Stream stream(c10::Device device);
  [[nodiscard]] int64_t num_bytes() const;

 private:
  /// A free one that this step may use, the smallest that is large enough.
  [[nodiscard]] std::optional<HostSlot> take_free(
      int64_t num_bytes, const std::optional<uint64_t>& capture);
  /// Those of longer sequences replace those of shorter ones.
  void drop_largest_free();

  mutable std::mutex mutex_;
  std::vector<HostSlot> free_;
  std::optional<c10::Stream> stream_;
  int64_t num_bytes_ = 0;
};

}  // namespace tessera::internal
