// Construction without memory.
//
//   auto model = on_meta([&] { return Transformer(config); });
//
// Inside, uninitialised allocations that name no device (`empty`,
// `empty_strided`: what register_parameter(torch::empty(...)) of LibTorch's own
// layers calls) go to the meta device. Everything with a value (`arange`,
// `ones`, `zeros`, `tensor`) stays real, so that rotary tables and running
// statistics survive.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "tessera/module/gated_storage.h"

namespace tessera {

/// The mode itself, for this thread, until the scope ends. Scopes do not nest.
class MetaScope {
 public:
  MetaScope();
  ~MetaScope();
  MetaScope(const MetaScope&) = delete;
  MetaScope& operator=(const MetaScope&) = delete;

 private:
  c10::impl::IncludeDispatchKeyGuard guard_;
};

/// Returns `make()`, run on the meta device. Threads that `make` starts are not
/// under the mode.
template <class Make>
[[nodiscard]] auto on_meta(Make&& make) {
  MetaScope scope;
  return std::forward<Make>(make)();
}

/// Whether this thread is inside a MetaScope.
[[nodiscard]] bool in_meta_scope();

}  // namespace tessera
