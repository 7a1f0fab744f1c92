#include "tessera/kernels/cuda_kernels.h"

namespace tessera {

void register_cuda_kernels(torch::Library&) {}

}  // namespace tessera
