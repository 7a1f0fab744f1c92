#include "tessera/base/version.h"

#include <torch/version.h>

namespace tessera {

const char* version() { return "0.1.0"; }
const char* torch_version() { return TORCH_VERSION; }

}  // namespace tessera
