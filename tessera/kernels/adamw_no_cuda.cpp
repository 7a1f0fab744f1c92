#include "tessera/kernels/adamw.h"

namespace tessera {

bool adamw_in_one_pass(const AdamWTensors&, const AdamWNumbers&) {
  return false;
}

}  // namespace tessera
