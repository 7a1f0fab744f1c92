// The tensors in what a module takes and returns: in a tensor, an optional, a
// vector, array, pair, tuple or map of such, nested at will.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tessera::internal {

/// Whether all tensors in a T are found, and whether there may be any.
template <class T>
struct TensorsIn {
  static constexpr bool known = std::is_arithmetic_v<T> || std::is_enum_v<T> ||
                                std::is_same_v<T, std::string>;
  static constexpr bool some = false;
};

template <>
struct TensorsIn<at::Tensor> {
  static constexpr bool known = true;
  static constexpr bool some = true;
};

template <class... T>
struct TensorsInParts {
  static constexpr bool known = (TensorsIn<T>::known && ...);
  static constexpr bool some = (TensorsIn<T>::some || ...);
};

template <class T>
struct TensorsIn<std::vector<T>> : TensorsInParts<T> {};
template <class T, size_t N>
struct TensorsIn<std::array<T, N>> : TensorsInParts<T> {};
template <class T>
struct TensorsIn<std::optional<T>> : TensorsInParts<T> {};
template <class Key, class T>
struct TensorsIn<std::map<Key, T>> : TensorsInParts<T> {};
template <class Key, class T>
struct TensorsIn<std::unordered_map<Key, T>> : TensorsInParts<T> {};
template <class A, class B>
struct TensorsIn<std::pair<A, B>> : TensorsInParts<A, B> {};
template <class... T>
struct TensorsIn<std::tuple<T...>> : TensorsInParts<T...> {};

/// Replaces each tensor that is found in `value` by `change` of it.
template <class T, class Change>
void change_tensors(T& value, const Change& change);

template <class T, class Change>
void change_parts(std::optional<T>& value, const Change& change) {
  if (value) change_tensors(*value, change);
}
template <class A, class B, class Change>
void change_parts(std::pair<A, B>& value, const Change& change) {
  change_tensors(value.first, change);
  change_tensors(value.second, change);
}
template <class... T, class Change>
void change_parts(std::tuple<T...>& value, const Change& change) {
  std::apply([&](auto&... part) { (change_tensors(part, change), ...); },
             value);
}
template <class Key, class T, class Change>
void change_parts(std::map<Key, T>& value, const Change& change) {
  for (auto& item : value) change_tensors(item.second, change);
}
template <class Key, class T, class Change>
void change_parts(std::unordered_map<Key, T>& value, const Change& change) {
  for (auto& item : value) change_tensors(item.second, change);
}
template <class List, class Change>
void change_parts(List& value, const Change& change) {
  for (auto& part : value) change_tensors(part, change);
}

template <class T, class Change>
void change_tensors(T& value, const Change& change) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    value = change(value);
  } else if constexpr (TensorsIn<T>::some) {
    change_parts(value, change);
  }
}

}  // namespace tessera::internal
