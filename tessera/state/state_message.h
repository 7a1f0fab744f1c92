// A state dict as ranks tell each other of it: everything but the tensors'
// elements.
#pragma once

#include <string>
#include <string_view>

#include "tessera/state/state_dict.h"

namespace tessera {

[[nodiscard]] std::string encode_layout(const StateDict& dict);

/// The dict again. Its tensors have a dtype, sizes and boxes, and no memory:
/// `local` is empty. Errors: CommError for bytes that `encode_layout` did not
/// make.
[[nodiscard]] StateDict decode_layout(std::string_view bytes);

}  // namespace tessera
