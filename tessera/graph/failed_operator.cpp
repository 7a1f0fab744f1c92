#include "tessera/graph/failed_operator.h"

#include <algorithm>
#include <atomic>
#include <exception>

#include "tessera/base/error.h"

namespace tessera {

namespace {

/// What the callbacks, which are plain functions, write to. Of the one object
/// that lives.
struct Seen {
  std::mutex mutex;
  std::vector<std::string> left;  // by an exception, innermost first
};

Seen& seen() {
  static Seen one;
  return one;
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction&) {
  return nullptr;
}

// A RecordFunction ends as its scope does: by return, or by an exception.
void end(const at::RecordFunction& function, at::ObserverContext*) {
  if (std::uncaught_exceptions() == 0) return;
  const std::lock_guard lock(seen().mutex);
  seen().left.emplace_back(function.name());
}

}  // namespace

FailedOperator::FailedOperator() {
  {
    const std::lock_guard lock(seen().mutex);
    seen().left.clear();
  }
  handle_ =
      at::addGlobalCallback(at::RecordFunctionCallback(begin, end)
                                .scopes({at::RecordScope::FUNCTION,
                                         at::RecordScope::BACKWARD_FUNCTION}));
}

FailedOperator::~FailedOperator() { at::removeCallback(handle_); }

std::string FailedOperator::describe() const {
  const std::lock_guard lock(seen().mutex);
  const auto& left = seen().left;
  if (left.empty()) return "";
  std::string text = left[0];
  const size_t shown = std::min<size_t>(left.size(), 4);
  for (size_t i = 1; i < shown; ++i) text += str(", called by ", left[i]);
  return text;
}

}  // namespace tessera
