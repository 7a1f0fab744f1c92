// Whether bytes are text.
#pragma once

#include <string_view>

namespace tessera::checkpoint {

/// True for UTF-8 without surrogates and without overlong forms.
[[nodiscard]] bool is_valid_utf8(std::string_view text);

}  // namespace tessera::checkpoint
