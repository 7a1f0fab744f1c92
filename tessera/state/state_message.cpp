#include "tessera/state/state_message.h"

#include <ATen/ops/empty.h>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"

// A value is [kind, content]: JSON knows no tuples. The kind is the position of
// the type in Value::Variant.
namespace tessera {
namespace {

using nlohmann::json;

enum Kind : size_t {
  none,
  boolean,
  integer,
  big_integer,
  real,
  text,
  bytes,
  tuple,
  list,
  dict,
  opaque
};
static_assert(std::variant_size_v<Value::Variant> == opaque + 1);

json binary(const std::string& from) {
  return json::binary({from.begin(), from.end()});
}

std::string text_of(const json& from) {
  const auto& data = from.get_binary();
  return {data.begin(), data.end()};
}

json encode(const Value& value);

json encode(const Value::Items& items) {
  json out = json::array();
  for (const Value& item : items) out.push_back(encode(item));
  return out;
}

struct Content {
  json operator()(Value::None) const { return nullptr; }
  json operator()(bool value) const { return value; }
  json operator()(int64_t value) const { return value; }
  json operator()(double value) const { return value; }
  json operator()(const std::string& value) const { return binary(value); }
  json operator()(const Value::BigInteger& value) const {
    return binary(value.bytes);
  }
  json operator()(const Value::Bytes& value) const {
    return binary(value.bytes);
  }
  json operator()(const Value::Tuple& value) const {
    return encode(value.items);
  }
  json operator()(const Value::List& value) const {
    return encode(value.items);
  }
  json operator()(const Value::Dict& value) const {
    json out = json::array();
    for (const auto& [key, item] : value.pairs) {
      out.push_back({encode(key), encode(item)});
    }
    return out;
  }
  json operator()(const Value::Opaque& value) const {
    return json::array({binary(value.item), binary(value.why)});
  }
};

json encode(const Value& value) {
  return json::array(
      {value.variant().index(), std::visit(Content{}, value.variant())});
}

Value decode(const json& from);

Value::Items decode_items(const json& from) {
  Value::Items items;
  for (const json& item : from) items.push_back(decode(item));
  return items;
}

Value decode_dict(const json& from) {
  Value::Pairs pairs;
  for (const json& pair : from) {
    pairs.emplace_back(decode(pair.at(0)), decode(pair.at(1)));
  }
  return Value::dict(std::move(pairs));
}

Value decode(const json& from) {
  const json& content = from.at(1);
  switch (from.at(0).get<size_t>()) {
    case none:
      return {};
    case boolean:
      return content.get<bool>();
    case integer:
      return content.get<int64_t>();
    case big_integer:
      return Value(Value::Variant(Value::BigInteger{text_of(content)}));
    case real:
      return content.get<double>();
    case text:
      return text_of(content);
    case bytes:
      return Value::bytes(text_of(content));
    case tuple:
      return Value::tuple(decode_items(content));
    case list:
      return Value::list(decode_items(content));
    case dict:
      return decode_dict(content);
    default:
      return Value(Value::Variant(
          Value::Opaque{text_of(content.at(0)), text_of(content.at(1))}));
  }
}

json encode(const Path& path) {
  json out = json::array();
  for (const PathStep& step : path) {
    if (const auto* position = std::get_if<int64_t>(&step)) {
      out.push_back(*position);
    } else {
      out.push_back(binary(std::get<std::string>(step)));
    }
  }
  return out;
}

Path decode_path(const json& from) {
  Path path;
  for (const json& step : from) {
    if (step.is_binary()) {
      path.emplace_back(text_of(step));
    } else {
      path.emplace_back(step.get<int64_t>());
    }
  }
  return path;
}

json encode(const StateTensor& tensor) {
  json boxes = json::array();
  for (const Box& box : tensor.boxes) {
    boxes.push_back({box.offsets, box.lengths});
  }
  return {{"dtype", static_cast<int>(tensor.local.scalar_type())},
          {"sizes", tensor.sizes},
          {"boxes", std::move(boxes)}};
}

StateTensor decode_tensor(const json& from) {
  const auto type = static_cast<c10::ScalarType>(from.at("dtype").get<int>());
  StateTensor tensor{
      at::empty({0}, type), from.at("sizes").get<std::vector<int64_t>>(), {}};
  for (const json& box : from.at("boxes")) {
    tensor.boxes.push_back({box.at(0).get<std::vector<int64_t>>(),
                            box.at(1).get<std::vector<int64_t>>()});
  }
  return tensor;
}

}  // namespace

std::string encode_layout(const StateDict& dict) {
  json out = json::array();
  for (const StateEntry& entry : dict) {
    const auto* tensor = std::get_if<StateTensor>(&entry.leaf);
    out.push_back({encode(entry.path),
                   tensor != nullptr ? encode(*tensor)
                                     : encode(std::get<Value>(entry.leaf))});
  }
  std::string packed;
  json::to_msgpack(out, packed);
  return packed;
}

StateDict decode_layout(std::string_view bytes) {
  try {
    StateDict dict;
    for (const json& entry : json::from_msgpack(bytes)) {
      const json& leaf = entry.at(1);
      dict.push_back({decode_path(entry.at(0)), leaf.is_object()
                                                    ? Leaf(decode_tensor(leaf))
                                                    : Leaf(decode(leaf))});
    }
    return dict;
  } catch (const json::exception& error) {
    throw CommError(
        str("state dict: what another rank told of its state is "
            "damaged: ",
            error.what(), "."));
  }
}

}  // namespace tessera
