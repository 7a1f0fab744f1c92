// Calls that may never return, on a thread of their own.
//
//   BoundedCalls calls;
//   std::optional<bool> found = calls.run([store] { return store->check(...);
//   },
//                                         std::chrono::seconds(3));
//   if (!found) ...  // the process that holds the store is stopped
//
// Torch-free. Thread-safe: callers come one after the other.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace tessera {

class BoundedCalls {
 public:
  BoundedCalls();
  /// A call that has not returned is left alone, with its thread.
  ~BoundedCalls();
  BoundedCalls(const BoundedCalls&) = delete;
  BoundedCalls& operator=(const BoundedCalls&) = delete;

  /// What `call` returns, or throws. Empty when it did not return in time; so
  /// is every later one then, at once. `call` must own all that it uses.
  template <class Call>
  [[nodiscard]] auto run(Call call, std::chrono::milliseconds within)
      -> std::optional<decltype(call())>;

  /// From now on no call, the present one included, is waited for longer.
  void hurry(std::chrono::milliseconds within);

  /// True once a call did not return in time.
  [[nodiscard]] bool stuck() const;

 private:
  struct Shared;

  [[nodiscard]] bool returns(std::function<void()> call,
                             std::chrono::milliseconds within);

  std::shared_ptr<Shared> shared_;
  std::mutex callers_;
  std::thread thread_;
};

template <class Call>
auto BoundedCalls::run(Call call, std::chrono::milliseconds within)
    -> std::optional<decltype(call())> {
  using Task = std::packaged_task<decltype(call())()>;
  const auto task = std::make_shared<Task>(std::move(call));
  if (!returns([task] { (*task)(); }, within)) return std::nullopt;
  return task->get_future().get();
}

}  // namespace tessera
