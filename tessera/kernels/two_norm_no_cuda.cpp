#include "tessera/kernels/two_norm.h"

namespace tessera {

std::vector<at::Tensor> two_norms_in_one_pass(const std::vector<at::Tensor>&) {
  return {};
}

}  // namespace tessera
