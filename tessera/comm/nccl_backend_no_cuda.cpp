#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tessera/base/error.h"
#include "tessera/comm/backend_factory.h"

namespace tessera {
namespace {

[[noreturn]] void throw_no_cuda() {
  throw Unsupported(
      "NCCL: this build has no CUDA; configure with TESSERA_CUDA=ON, or use "
      "CommBackend::gloo.");
}

}  // namespace

bool nccl_is_available() { return false; }

c10::Device choose_cuda_device(std::optional<int>, int) { throw_no_cuda(); }

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendPlace&,
                                                    c10::Device) {
  throw_no_cuda();
}

}  // namespace tessera
