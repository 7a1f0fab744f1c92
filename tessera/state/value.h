// A plain value as Python knows them, for what goes into checkpoints beside
// tensors.
//
//   Value epoch = 3;
//   Value betas = Value::tuple({0.9, 0.999});
//   Value group = Value::dict({{"lr", 3e-4}, {"betas", betas}});
//   double lr = group.at("lr").as_double();
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tessera {

class Value {
 public:
  using Items = std::vector<Value>;
  using Pairs = std::vector<std::pair<Value, Value>>;  // in order

  struct None {
    bool operator==(const None&) const = default;
  };
  struct Bytes {
    std::string bytes;
    bool operator==(const Bytes&) const = default;
  };
  /// A Python int beyond 64 bits: two's complement, little-endian.
  struct BigInteger {
    std::string bytes;
    bool operator==(const BigInteger&) const = default;
  };
  struct Tuple {
    Items items;
    bool operator==(const Tuple& other) const;
  };
  struct List {
    Items items;
    bool operator==(const List& other) const;
  };
  struct Dict {
    Pairs pairs;
    bool operator==(const Dict& other) const;
  };
  /// What is not understood here, as it lies in its file (a complete item): it
  /// can be copied through.
  struct Opaque {
    std::string item;
    std::string why;
    bool operator==(const Opaque& other) const { return item == other.item; }
  };
  using Variant = std::variant<None, bool, int64_t, BigInteger, double,
                               std::string, Bytes, Tuple, List, Dict, Opaque>;

  Value() = default;  // None
  Value(std::same_as<bool> auto value) : variant_(value) {}
  Value(std::integral auto value) requires(!std::same_as<decltype(value), bool>)
      : variant_(static_cast<int64_t>(value)) {}
  Value(std::floating_point auto value)
      : variant_(static_cast<double>(value)) {}
  Value(const char* text) : variant_(std::string(text)) {}
  Value(std::string_view text) : variant_(std::string(text)) {}
  Value(std::string text) : variant_(std::move(text)) {}
  explicit Value(Variant variant) : variant_(std::move(variant)) {}

  [[nodiscard]] static Value bytes(std::string bytes);
  [[nodiscard]] static Value tuple(Items items);
  [[nodiscard]] static Value list(Items items);
  [[nodiscard]] static Value dict(Pairs pairs);

  [[nodiscard]] const Variant& variant() const { return variant_; }
  template <class T>
  [[nodiscard]] const T* get() const {
    return std::get_if<T>(&variant_);
  }

  [[nodiscard]] bool is_none() const { return get<None>() != nullptr; }
  // Errors, of all below: InvalidArgument that shows the value.
  [[nodiscard]] bool as_bool() const;
  [[nodiscard]] int64_t as_int() const;
  [[nodiscard]] double as_double() const;  // of an int too
  [[nodiscard]] const std::string& as_text() const;
  [[nodiscard]] const std::string& as_bytes() const;
  /// Of a tuple or a list.
  [[nodiscard]] const Items& items() const;
  [[nodiscard]] const Pairs& pairs() const;
  /// The entry of a dict, or null.
  [[nodiscard]] const Value* find(std::string_view key) const;
  [[nodiscard]] const Value& at(std::string_view key) const;

  /// As Python prints it, more or less; long ones are cut.
  [[nodiscard]] std::string show() const;

  bool operator==(const Value& other) const = default;

 private:
  Variant variant_ = None{};
};

}  // namespace tessera
