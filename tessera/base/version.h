// Which Tessera this is, and the LibTorch it was built against.
#pragma once

namespace tessera {

[[nodiscard]] const char* version();
[[nodiscard]] const char* torch_version();

}  // namespace tessera
