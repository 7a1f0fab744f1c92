// Registers the CUDA kernels of operators.h: nothing in builds without CUDA.
#pragma once

namespace torch {
class Library;
}

namespace tessera {

void register_cuda_kernels(torch::Library& library);

}  // namespace tessera
