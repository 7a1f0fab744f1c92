#include "tessera/train/config_field.h"

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

[[noreturn]] void refuse_type(const ConfigEntry& entry,
                              std::string_view expected,
                              const ConfigValue& got) {
  throw InvalidArgument(str(entry.where, ": ", entry.key, " expects ", expected,
                            ", got ", got.describe(), "."));
}

/// 3, not 3.0, as a person writes it.
std::string number_text(double number) {
  const std::string text = to_toml(number);
  return text.ends_with(".0") ? text.substr(0, text.size() - 2) : text;
}

std::string describe(const Limits& limits) {
  const Limits any;
  const bool has_max = limits.max != any.max;
  const std::string max = number_text(limits.max);
  if (limits.above != any.above) {
    return str("more than ", number_text(limits.above),
               has_max ? str(", and at most ", max) : "");
  }
  if (limits.min == any.min) {
    return has_max ? max + " or less" : "a finite number";
  }
  const std::string min = number_text(limits.min);
  return has_max ? str("a number from ", min, " to ", max) : min + " or more";
}

void check_limits(const ConfigEntry& entry, double number,
                  const std::string& text, const Limits& limits) {
  const bool inside =
      number >= limits.min && number <= limits.max && number > limits.above;
  require<InvalidArgument>(inside, [&] {
    return str(entry.where, ": ", entry.key, " is ", text, "; give ",
               describe(limits), ".");
  });
}

}  // namespace

void take(const ConfigEntry& entry, const ConfigValue& value, const Limits&,
          bool& field) {
  const auto* flag = std::get_if<bool>(&value.value);
  if (flag == nullptr) refuse_type(entry, "true or false", value);
  field = *flag;
}

void take(const ConfigEntry& entry, const ConfigValue& value,
          const Limits& limits, int64_t& field) {
  const auto* number = std::get_if<int64_t>(&value.value);
  if (number == nullptr) refuse_type(entry, "an integer", value);
  check_limits(entry, static_cast<double>(*number), to_toml(*number), limits);
  field = *number;
}

void take(const ConfigEntry& entry, const ConfigValue& value,
          const Limits& limits, double& field) {
  const auto* whole = std::get_if<int64_t>(&value.value);
  const auto* number = std::get_if<double>(&value.value);
  if (whole == nullptr && number == nullptr) {
    refuse_type(entry, "a number", value);
  }
  const double got = whole ? static_cast<double>(*whole) : *number;
  check_limits(entry, got, number_text(got), limits);
  field = got;
}

void take(const ConfigEntry& entry, const ConfigValue& value, const Limits&,
          std::string& field) {
  const auto* text = std::get_if<std::string>(&value.value);
  if (text == nullptr) refuse_type(entry, "a string", value);
  field = *text;
}

const ConfigArray& array_of(const ConfigEntry& entry,
                            const ConfigValue& value) {
  const auto* array = std::get_if<ConfigArray>(&value.value);
  if (array == nullptr) refuse_type(entry, "an array, as in [1, 2]", value);
  return *array;
}

}  // namespace tessera::train
