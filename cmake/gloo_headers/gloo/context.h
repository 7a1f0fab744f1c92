// Stand-in, see gloo/algorithm.h.
#pragma once
#include <chrono>

namespace gloo {
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
  void closeConnections();
};
}  // namespace gloo
