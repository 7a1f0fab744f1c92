#include "tessera/state/value.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr size_t kMostShown = 200;

[[noreturn]] void refuse(const Value& value, const char* expected) {
  throw InvalidArgument(
      str("checkpoint value ", value.show(), " is not ", expected, "."));
}

// The first characters of a UTF-8 text; none is cut in half.
std::string first_of(const std::string& text) {
  size_t end = std::min(kMostShown, text.size());
  const auto continues = [&](size_t at) {
    return (static_cast<uint8_t>(text[at]) & 0xc0) == 0x80;
  };
  while (end > 0 && end < text.size() && continues(end)) --end;
  return text.substr(0, end);
}

void show_items(const Value::Items& items, const char* open, const char* close,
                std::string& out) {
  out += open;
  for (size_t i = 0; i < items.size() && out.size() < kMostShown; ++i) {
    out += (i == 0 ? "" : ", ") + items[i].show();
  }
  out += close;
}

void show_pairs(const Value::Pairs& pairs, std::string& out) {
  out += "{";
  for (size_t i = 0; i < pairs.size() && out.size() < kMostShown; ++i) {
    out += (i == 0 ? "" : ", ") + pairs[i].first.show() + ": " +
           pairs[i].second.show();
  }
  out += "}";
}

}  // namespace

// Here, where Value is complete.
bool Value::Tuple::operator==(const Tuple& other) const {
  return items == other.items;
}
bool Value::List::operator==(const List& other) const {
  return items == other.items;
}
bool Value::Dict::operator==(const Dict& other) const {
  return pairs == other.pairs;
}

Value Value::bytes(std::string bytes) {
  return Value(Variant(Bytes{std::move(bytes)}));
}
Value Value::tuple(Items items) {
  return Value(Variant(Tuple{std::move(items)}));
}
Value Value::list(Items items) {
  return Value(Variant(List{std::move(items)}));
}
Value Value::dict(Pairs pairs) {
  return Value(Variant(Dict{std::move(pairs)}));
}

bool Value::as_bool() const {
  if (const auto* value = get<bool>()) return *value;
  refuse(*this, "a bool");
}

int64_t Value::as_int() const {
  if (const auto* value = get<int64_t>()) return *value;
  refuse(*this, "an integer of 64 bits");
}

double Value::as_double() const {
  if (const auto* value = get<double>()) return *value;
  if (const auto* value = get<int64_t>()) return static_cast<double>(*value);
  refuse(*this, "a number");
}

const std::string& Value::as_text() const {
  if (const auto* value = get<std::string>()) return *value;
  refuse(*this, "a text");
}

const std::string& Value::as_bytes() const {
  if (const auto* value = get<Bytes>()) return value->bytes;
  refuse(*this, "bytes");
}

const Value::Items& Value::items() const {
  if (const auto* value = get<Tuple>()) return value->items;
  if (const auto* value = get<List>()) return value->items;
  refuse(*this, "a tuple or a list");
}

const Value::Pairs& Value::pairs() const {
  if (const auto* value = get<Dict>()) return value->pairs;
  refuse(*this, "a dict");
}

const Value* Value::find(std::string_view key) const {
  for (const auto& [name, value] : pairs()) {
    const auto* text = name.get<std::string>();
    if (text != nullptr && *text == key) return &value;
  }
  return nullptr;
}

const Value& Value::at(std::string_view key) const {
  const Value* found = find(key);
  require<InvalidArgument>(found != nullptr, [&] {
    return str("checkpoint value ", show(), " has no entry '", key, "'.");
  });
  return *found;
}

std::string Value::show() const {
  std::string out;
  if (is_none()) return "None";
  if (const auto* value = get<bool>()) return *value ? "True" : "False";
  if (const auto* value = get<int64_t>()) return str(*value);
  if (const auto* value = get<double>()) return str(*value);
  if (const auto* value = get<std::string>()) {
    return "'" + first_of(*value) + "'";
  }
  if (const auto* value = get<Bytes>()) {
    return str("(", value->bytes.size(), " bytes)");
  }
  if (get<BigInteger>() != nullptr) return "(a large integer)";
  if (const auto* value = get<Opaque>()) return str("(", value->why, ")");
  if (get<Tuple>() != nullptr) show_items(items(), "(", ")", out);
  if (get<List>() != nullptr) show_items(items(), "[", "]", out);
  if (get<Dict>() != nullptr) show_pairs(pairs(), out);
  return out;
}

}  // namespace tessera
