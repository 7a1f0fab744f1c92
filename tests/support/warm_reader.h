// TorchScript's reader, used once before ranks that are threads use it.
#pragma once

#include <torch/torch.h>

#include <sstream>

namespace tessera::test {

/// The reader behind torch::load has a static name that its first call makes.
/// The compiler's guard orders that call before all others, which the thread
/// sanitizer cannot see in libtorch; that this thread starts the ranks, it can.
inline void warm_torch_reader() {
  std::stringstream stream;
  torch::save(torch::zeros({1}), stream);
  torch::Tensor loaded;
  torch::load(loaded, stream);
}

}  // namespace tessera::test
