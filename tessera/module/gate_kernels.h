// Unboxed kernels for the operators that read parameters most often: the boxed
// fallback costs about a microsecond more a call.
#pragma once

namespace torch {
class Library;
}

namespace tessera {

void register_gate_kernels(torch::Library& aten);

}  // namespace tessera
