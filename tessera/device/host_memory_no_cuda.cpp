#include <ATen/ops/empty.h>

#include "tessera/device/host_memory.h"

namespace tessera {

at::Tensor make_host_bytes(int64_t num_bytes, c10::Device /*device*/) {
  return at::empty({num_bytes}, at::kByte);
}

}  // namespace tessera
