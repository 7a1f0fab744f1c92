#include "tests/differential/values.h"

#include <c10/util/accumulate.h>

namespace differential {

namespace {

uint32_t mix(uint32_t x) {
  x = (x ^ (x >> 15)) * 0x2c1b3c6du;
  x = (x ^ (x >> 12)) * 0x297a2d39u;
  return x ^ (x >> 15);
}

uint32_t start_of(const std::string& name, uint32_t seed) {
  uint32_t hash = mix(seed + 1);
  for (const char c : name) hash = mix(hash ^ static_cast<uint8_t>(c));
  return hash;
}

/// The largest power of two that is at most 2 / sqrt(fan_in).
float scale_of(at::IntArrayRef sizes) {
  int64_t fan_in = 1;
  for (size_t d = 1; d < sizes.size(); ++d) fan_in *= sizes[d];
  float scale = 2;
  for (int64_t square = 1; square < fan_in; square *= 4) scale /= 2;
  return scale;
}

}  // namespace

torch::Tensor draws(const std::string& name, uint32_t seed, int64_t n) {
  torch::Tensor result = torch::empty({n}, torch::kLong);
  const uint32_t first = start_of(name, seed);
  auto* data = result.data_ptr<int64_t>();
  for (int64_t i = 0; i < n; ++i) {
    data[i] = mix(first + static_cast<uint32_t>(i) * 0x9e3779b1u) & 0xffffu;
  }
  return result;
}

torch::Tensor uniform(const std::string& name, uint32_t seed,
                      at::IntArrayRef sizes) {
  const torch::Tensor whole = draws(name, seed, c10::multiply_integers(sizes));
  return ((whole - 32768).to(torch::kFloat) / 32768).reshape(sizes);
}

torch::Tensor whole(const std::string& name, uint32_t seed,
                    at::IntArrayRef sizes, int64_t bound) {
  return (draws(name, seed, c10::multiply_integers(sizes)) % bound)
      .reshape(sizes);
}

torch::Tensor start(const std::string& name, uint32_t seed,
                    at::IntArrayRef sizes) {
  const torch::Tensor noise = uniform(name, seed, sizes);
  if (sizes.size() > 1) return noise * scale_of(sizes);
  return name.ends_with("weight") ? 1 + noise / 4 : noise / 4;
}

}  // namespace differential
