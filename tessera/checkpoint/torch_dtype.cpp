#include "tessera/checkpoint/torch_dtype.h"

#include <array>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

using c10::ScalarType;

constexpr std::array kScalarTypes = {
    std::pair{Dtype::float64, ScalarType::Double},
    std::pair{Dtype::float32, ScalarType::Float},
    std::pair{Dtype::float16, ScalarType::Half},
    std::pair{Dtype::bfloat16, ScalarType::BFloat16},
    std::pair{Dtype::int64, ScalarType::Long},
    std::pair{Dtype::int32, ScalarType::Int},
    std::pair{Dtype::int16, ScalarType::Short},
    std::pair{Dtype::int8, ScalarType::Char},
    std::pair{Dtype::uint8, ScalarType::Byte},
    std::pair{Dtype::bool8, ScalarType::Bool},
    std::pair{Dtype::complex64, ScalarType::ComplexFloat},
    std::pair{Dtype::complex128, ScalarType::ComplexDouble},
    std::pair{Dtype::complex32, ScalarType::ComplexHalf},
    std::pair{Dtype::uint16, ScalarType::UInt16},
    std::pair{Dtype::uint32, ScalarType::UInt32},
    std::pair{Dtype::uint64, ScalarType::UInt64},
    std::pair{Dtype::float8_e5m2, ScalarType::Float8_e5m2},
    std::pair{Dtype::float8_e4m3fn, ScalarType::Float8_e4m3fn},
    std::pair{Dtype::float8_e5m2fnuz, ScalarType::Float8_e5m2fnuz},
    std::pair{Dtype::float8_e4m3fnuz, ScalarType::Float8_e4m3fnuz},
    std::pair{Dtype::float8_e8m0fnu, ScalarType::Float8_e8m0fnu},
    std::pair{Dtype::float4_e2m1fn_x2, ScalarType::Float4_e2m1fn_x2},
};
static_assert(kScalarTypes.size() == kDtypes.size());

}  // namespace

Dtype dtype_of(ScalarType type) {
  for (const auto& [dtype, scalar_type] : kScalarTypes) {
    if (scalar_type == type) return dtype;
  }
  throw Unsupported(str("a tensor of ", c10::toString(type),
                        " cannot be saved; convert it first."));
}

ScalarType scalar_type_of(Dtype dtype) {
  return kScalarTypes[static_cast<size_t>(dtype)].second;
}

}  // namespace tessera::checkpoint
