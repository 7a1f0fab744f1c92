#include "tessera/train/random_state.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>

#include <cstring>
#include <mutex>
#include <string>

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

/// The finaliser of SplitMix64: each bit moves all others.
constexpr uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

std::string bytes_of(c10::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::scoped_lock lock(generator.mutex());
  const at::Tensor state = generator.get_state().contiguous();
  return {static_cast<const char*>(state.const_data_ptr()), state.nbytes()};
}

void set_bytes(c10::Device device, const std::string& bytes) {
  const at::Tensor state =
      at::empty(static_cast<int64_t>(bytes.size()), at::kByte);
  std::memcpy(state.mutable_data_ptr(), bytes.data(), bytes.size());
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::scoped_lock lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace

void seed_random(uint64_t seed, int64_t step, int64_t rank) {
  at::manual_seed(mix(mix(mix(seed) ^ static_cast<uint64_t>(step)) ^
                      static_cast<uint64_t>(rank)));
}

Value random_state(c10::Device device) {
  Value::Pairs states = {{"cpu", Value::bytes(bytes_of(at::kCPU))}};
  if (!device.is_cpu()) {
    states.emplace_back("device", Value::bytes(bytes_of(device)));
  }
  return Value::dict(std::move(states));
}

void set_random_state(const Value& state, c10::Device device) {
  const Value* cpu = state.find("cpu");
  const Value* other = state.find("device");
  tessera::require<InvalidArgument>(cpu != nullptr, [] {
    return str("set_random_state: there is no state of the CPU's generator.");
  });
  set_bytes(at::kCPU, cpu->as_bytes());
  if (!device.is_cpu() && other != nullptr)
    set_bytes(device, other->as_bytes());
}

}  // namespace tessera::train
