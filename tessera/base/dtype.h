// Every element type that LibTorch saves, and its names in files. Torch-free.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tessera {

enum class Dtype : uint8_t {
  float64,
  float32,
  float16,
  bfloat16,
  int64,
  int32,
  int16,
  int8,
  uint8,
  bool8,
  complex64,
  complex128,
  complex32,
  uint16,
  uint32,
  uint64,
  float8_e5m2,
  float8_e4m3fn,
  float8_e5m2fnuz,
  float8_e4m3fnuz,
  float8_e8m0fnu,
  float4_e2m1fn_x2,
};

struct DtypeRow {
  Dtype dtype;
  int num_bytes;                   // of one element
  std::string_view name;           // torch.<name>
  std::string_view storage_class;  // torch.<class>; "" for the newer dtypes
  std::string_view safetensors;    // "" where that format has none
};

/// In the order of the enumeration.
inline constexpr std::array kDtypes = {
    DtypeRow{Dtype::float64, 8, "float64", "DoubleStorage", "F64"},
    DtypeRow{Dtype::float32, 4, "float32", "FloatStorage", "F32"},
    DtypeRow{Dtype::float16, 2, "float16", "HalfStorage", "F16"},
    DtypeRow{Dtype::bfloat16, 2, "bfloat16", "BFloat16Storage", "BF16"},
    DtypeRow{Dtype::int64, 8, "int64", "LongStorage", "I64"},
    DtypeRow{Dtype::int32, 4, "int32", "IntStorage", "I32"},
    DtypeRow{Dtype::int16, 2, "int16", "ShortStorage", "I16"},
    DtypeRow{Dtype::int8, 1, "int8", "CharStorage", "I8"},
    DtypeRow{Dtype::uint8, 1, "uint8", "ByteStorage", "U8"},
    DtypeRow{Dtype::bool8, 1, "bool", "BoolStorage", "BOOL"},
    DtypeRow{Dtype::complex64, 8, "complex64", "ComplexFloatStorage", "C64"},
    DtypeRow{Dtype::complex128, 16, "complex128", "ComplexDoubleStorage", ""},
    DtypeRow{Dtype::complex32, 4, "complex32", "", ""},
    DtypeRow{Dtype::uint16, 2, "uint16", "", "U16"},
    DtypeRow{Dtype::uint32, 4, "uint32", "", "U32"},
    DtypeRow{Dtype::uint64, 8, "uint64", "", "U64"},
    DtypeRow{Dtype::float8_e5m2, 1, "float8_e5m2", "", "F8_E5M2"},
    DtypeRow{Dtype::float8_e4m3fn, 1, "float8_e4m3fn", "", "F8_E4M3"},
    DtypeRow{Dtype::float8_e5m2fnuz, 1, "float8_e5m2fnuz", "", "F8_E5M2FNUZ"},
    DtypeRow{Dtype::float8_e4m3fnuz, 1, "float8_e4m3fnuz", "", "F8_E4M3FNUZ"},
    DtypeRow{Dtype::float8_e8m0fnu, 1, "float8_e8m0fnu", "", "F8_E8M0"},
    DtypeRow{Dtype::float4_e2m1fn_x2, 1, "float4_e2m1fn_x2", "", ""},
};

[[nodiscard]] constexpr const DtypeRow& row_of(Dtype dtype) {
  return kDtypes[static_cast<size_t>(dtype)];
}

/// The dtype whose `column` (one of the names of DtypeRow) is `name`.
[[nodiscard]] constexpr std::optional<Dtype> find_dtype(
    std::string_view DtypeRow::*column, std::string_view name) {
  if (name.empty()) return std::nullopt;
  for (const DtypeRow& row : kDtypes) {
    if (row.*column == name) return row.dtype;
  }
  return std::nullopt;
}

/// The bytes of a tensor of `sizes`, or none for a negative size or a product
/// beyond 2^62.
template <class Sizes>
[[nodiscard]] constexpr std::optional<uint64_t> num_bytes_of(
    Dtype dtype, const Sizes& sizes) {
  constexpr uint64_t kMost = uint64_t{1} << 62;
  uint64_t bytes = static_cast<uint64_t>(row_of(dtype).num_bytes);
  bool empty = false;
  for (const int64_t size : sizes) {
    if (size < 0) return std::nullopt;
    empty = empty || size == 0;
    if (empty) continue;
    if (static_cast<uint64_t>(size) > kMost / bytes) return std::nullopt;
    bytes *= static_cast<uint64_t>(size);
  }
  return empty ? 0 : bytes;
}

}  // namespace tessera
