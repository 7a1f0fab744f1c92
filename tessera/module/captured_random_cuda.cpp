#include <ATen/cuda/CUDAGeneratorImpl.h>

#include "tessera/module/captured_random.h"

namespace tessera {

namespace {

using State = c10::intrusive_ptr<at::CUDAGeneratorState>;

// LibTorch shows no way to the position inside a capture: the generator's state
// is private. An explicit instantiation may name private members.
template <State at::CUDAGeneratorImpl::*member>
struct Reach {
  friend State& state_of(at::CUDAGeneratorImpl& generator) {
    return generator.*member;
  }
};
State& state_of(at::CUDAGeneratorImpl& generator);
template struct Reach<&at::CUDAGeneratorImpl::state_>;

at::CUDAGeneratorState* state_in_capture(const at::Generator& generator) {
  if (!generator.defined() || !generator.device().is_cuda()) return nullptr;
  auto* impl =
      static_cast<at::CUDAGeneratorImpl*>(generator.unsafeGetGeneratorImpl());
  at::CUDAGeneratorState* state = state_of(*impl).get();
  return state->capturing_ ? state : nullptr;
}

}  // namespace

std::optional<uint64_t> captured_offset(const at::Generator& generator) {
  const auto* state = state_in_capture(generator);
  if (state == nullptr) return std::nullopt;
  return state->offset_intragraph_;
}

void set_captured_offset(const at::Generator& generator, uint64_t offset) {
  if (auto* state = state_in_capture(generator)) {
    state->offset_intragraph_ = offset;
  }
}

void leave_capture(const at::Generator& generator) {
  if (auto* state = state_in_capture(generator)) state->capturing_ = false;
}

}  // namespace tessera
