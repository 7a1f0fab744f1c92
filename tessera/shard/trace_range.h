// A range with a name in a profiler's trace, as PyTorch's FSDP2 names it:
// "FSDP::all_gather (layers.0)". Costs nothing when nobody profiles.
#pragma once

#include <ATen/record_function.h>

#include <string>
#include <string_view>

#include "tessera/base/error.h"

namespace tessera {

class TraceRange {
 public:
  /// `unit` may be "": FSDP2's root has no name.
  explicit TraceRange(const char* label, std::string_view unit = "")
      : range_(at::RecordScope::USER_SCOPE) {
    if (!range_.isActive()) return;
    range_.before(unit.empty() ? std::string(label)
                               : str(label, " (", unit, ")"));
  }

 private:
  at::RecordFunction range_;
};

}  // namespace tessera
