// The way from the root of nested dicts and lists to a leaf.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace tessera {

/// A key of a dict, or a position in a list.
using PathStep = std::variant<std::string, int64_t>;
using Path = std::vector<PathStep>;

/// The steps joined by dots: the key of a leaf in a checkpoint.
[[nodiscard]] std::string key_of(const Path& path);

/// `path`, with `step` behind it.
[[nodiscard]] Path operator/(Path path, PathStep step);

}  // namespace tessera
