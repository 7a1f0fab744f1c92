#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/shard/unit.h"

// What must not be done to a unit's full parameters, by name.

namespace tessera {

std::string Unit::name_of(const at::Tensor& tensor) const {
  std::string name = "?";
  for (const auto& group : groups_) {
    const auto& places = group->layout().parameters();
    for (size_t i = 0; i < group->size(); ++i) {
      const at::Tensor full = group->full(i);
      const int64_t offset = tensor.storage_offset() - places[i].full_offset;
      if (full.defined() && full.storage().is_alias_of(tensor.storage()) &&
          offset >= 0 && offset < std::max<int64_t>(places[i].numel, 1)) {
        name = group->name(i);
      }
    }
  }
  return name;
}

void Unit::refuse_write(const char* op, const at::Tensor& tensor) {
  throw InvalidState(
      str(op, " would write to the full parameter '", name_of(tensor),
          "' of unit '", name_,
          "', which is freed after use: the write would be lost. Write "
          "inside a FullParameters scope, or write the shards that "
          "parameters() returns."));
}

void Unit::refuse_grad(const at::Tensor& tensor) const {
  throw InvalidState(
      str("the gradient of the member for parameter '", name_of(tensor),
          "' of unit '", name_,
          "' was asked for; it is its shard that has one. Take the shards that "
          "parameters() or named_parameters() return, and make optimizers of "
          "these, after fully_shard: one of members would train nothing."));
}

}  // namespace tessera
