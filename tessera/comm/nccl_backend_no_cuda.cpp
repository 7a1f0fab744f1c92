#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tessera/base/error.h"
#include "tessera/comm/backend_factory.h"

namespace tessera {

bool nccl_is_available() { return false; }

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendPlace&,
                                                    c10::Device) {
  throw Unsupported(
      "communicator: this build has no CUDA, so no NCCL; configure with "
      "TESSERA_CUDA=ON, or use CommBackend::gloo.");
}

}  // namespace tessera
