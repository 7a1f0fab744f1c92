// Where the launchers of several nodes leave words for each other: one of them
// holds the store, the others are connected to it. What is in it outlives every
// attempt of the job.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tessera/base/error.h"

namespace tessera::launch {

/// The store cannot be reached, or has gone away.
class StoreGone : public Error {
 public:
  using Error::Error;
};

/// All functions raise StoreGone.
class NodeStore {
 public:
  virtual ~NodeStore() = default;

  /// This process holds the store; it goes when this process goes.
  [[nodiscard]] virtual bool hosted_here() const = 0;
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Never waits for a key.
  [[nodiscard]] virtual std::optional<std::string> get(
      const std::string& key) = 0;
  /// Adds to a number, which is 0 at first, and returns the sum.
  virtual int64_t add(const std::string& key, int64_t number) = 0;
  /// Sets a key that nobody has set. Returns what stands there then.
  virtual std::string set_if_absent(const std::string& key,
                                    const std::string& value) = 0;
};

/// Holds or joins the store; one try, which takes about `patience` at most.
/// Errors: StoreGone when a later try may succeed, LaunchError when none will.
using OpenNodeStore =
    std::function<std::unique_ptr<NodeStore>(std::chrono::milliseconds)>;

}  // namespace tessera::launch
