// Streams and events that cost nothing where there is one lane of work (CPU).
//
// Built on c10's device-generic classes, so that one file serves CPU and CUDA.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <optional>

namespace tessera {

enum class StreamPriority { normal, high };

[[nodiscard]] c10::Stream current_stream(c10::Device device);

/// A stream of its own on CUDA; the only stream on CPU.
[[nodiscard]] c10::Stream make_stream(c10::Device device,
                                      StreamPriority priority);

/// Makes `device` the current one of this thread (nothing on CPU).
void set_current_device(c10::Device device);

/// A point in a stream's work for other streams to wait for. Nothing on CPU.
class StreamEvent {
 public:
  void record(const c10::Stream& stream);
  /// Later work of `stream` waits for what was recorded; nothing if nothing
  /// was.
  void block(const c10::Stream& stream);
  /// This thread waits for what was recorded; nothing if nothing was.
  void synchronize();
  /// Whether what was recorded is through, or nothing was.
  [[nodiscard]] bool reached() const;

 private:
  std::optional<c10::Event> event_;
};

/// Work of this thread goes to `stream` until the scope ends. Nothing on CPU.
class StreamScope {
 public:
  explicit StreamScope(const c10::Stream& stream);

 private:
  std::optional<c10::StreamGuard> guard_;
};

}  // namespace tessera
