// The fused kernels on this machine's first GPU: agreement with double, graphs,
// speed. Exits with 1 when anything differs.
#include <cstdio>
#include <exception>

#include "tests/device/kernels/checks.h"

int main() {
  std::setvbuf(stdout, nullptr, _IOLBF,
               0);  // what was printed survives a crash
  using namespace device_kernels;
  try {
    measure_speed();
    const int failures = check_agreement() + check_adamw() + check_graph() +
                         check_peers() + check_products() + check_two_norms();
    std::printf("device_kernels: %d FAILED\n", failures);
    return failures == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::printf("device_kernels: FAIL: %s\n", error.what());
    return 1;
  }
}
