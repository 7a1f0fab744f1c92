#include "tessera/device/capture.h"

#include <mutex>
#include <unordered_set>

namespace tessera {

namespace {

struct Gone {
  std::mutex mutex;
  std::unordered_set<uint64_t> ids;
};

Gone& gone() {
  static auto* const all = new Gone;  // also for graphs that end after main
  return *all;
}

}  // namespace

void note_graph_gone(uint64_t id) {
  const std::scoped_lock lock(gone().mutex);
  gone().ids.insert(id);
}

bool is_graph_gone(uint64_t id) {
  const std::scoped_lock lock(gone().mutex);
  return gone().ids.contains(id);
}

}  // namespace tessera
