// The name that somebody may have meant.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tessera {

/// The fewest letters to insert, drop, replace or swap with their neighbour
/// that turn `a` into `b`. Bytes, upper and lower case alike.
[[nodiscard]] int edit_distance(std::string_view a, std::string_view b);

/// The name nearest to `wrong`, or "" when none is near: more than a third of
/// its letters, and more than two, would have to change. The first of several.
[[nodiscard]] std::string nearest_name(std::string_view wrong,
                                       std::span<const std::string> names);

}  // namespace tessera
