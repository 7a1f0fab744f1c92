#include "tessera/comm/cuda_report.h"

namespace tessera {

std::vector<std::string> cuda_device_names() { return {}; }

std::string nccl_version() { return {}; }

}  // namespace tessera
