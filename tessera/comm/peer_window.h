// Device memory of each rank that all ranks of one machine have mapped. Inside
// comm only, in builds with CUDA.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/peer_link.h"

namespace tessera {

class PeerWindow {
 public:
  /// `num_bytes` zeros on each rank, mapped by all. Collective, waits on the
  /// host. Where a rank cannot map another's, all get the same sentence about
  /// it in `why`, and a window of no use. Errors: those of `exchange`.
  PeerWindow(int64_t num_bytes, const PeerLink::Place& place,
             const PeerLink::Exchange& exchange, std::string& why);

  /// That of `rank`, where this process sees it; its own, too.
  [[nodiscard]] char* of(int rank) const { return addresses_[rank]; }

 private:
  void map(const std::vector<std::string>& offers, const PeerLink::Place& place,
           std::string& trouble);

  at::Tensor own_;  // uint8
  std::vector<std::shared_ptr<void>> mapped_;
  std::vector<char*> addresses_;  // by rank
};

}  // namespace tessera
