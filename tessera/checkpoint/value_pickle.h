// Values as pickles, both ways.
#pragma once

#include <string>
#include <string_view>

#include "tessera/checkpoint/pickle.h"
#include "tessera/state/value.h"

namespace tessera::checkpoint {

/// Puts `value` on the stack of the program that `out` writes.
/// Errors: InvalidArgument for an opaque value and for text that is not UTF-8.
void write_value(PickleWriter& out, const Value& value);

/// The program that makes `value`, of protocol 2.
[[nodiscard]] std::string pickle_of(const Value& value);

/// The value that a pickle describes.
/// Errors: CheckpointError, with the name and the byte, for everything that is
///         not None, bool, int, float, str, bytes, tuple, list, dict or
///         OrderedDict.
[[nodiscard]] Value value_of(const PickleNode& node, const std::string& what);

}  // namespace tessera::checkpoint
