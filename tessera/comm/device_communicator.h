// Collectives on CUDA devices: NCCL calls on the stream that is current, and
// gathers and reduce-scatters over a link between GPUs where there is one.
//
// Nothing blocks the host, and the result is ordered like a kernel launched on
// that stream. The caller keeps the tensors alive until then, and does what
// other streams need with events.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/comm/communicator_base.h"

namespace tessera {

class DeviceCommunicator final : public CommunicatorBase {
 public:
  /// `backend` is empty for a group of one.
  DeviceCommunicator(std::shared_ptr<World::State> world, std::string name,
                     const std::vector<int>& ranks,
                     c10::intrusive_ptr<c10d::Backend> backend);
  ~DeviceCommunicator() override;

  Pending all_gather(std::span<const GatherCall> calls,
                     const CallLabel& label) override;
  [[nodiscard]] bool gathers_as(c10::ScalarType from,
                                c10::ScalarType to) const override;
  Pending reduce_scatter(std::span<const ReduceCall> calls,
                         const CallLabel& label, ReduceOp op) override;
  /// NCCL scales what it reads, a link the sum.
  [[nodiscard]] bool has_mean() const override { return true; }
  [[nodiscard]] bool sums_as(c10::ScalarType from,
                             c10::ScalarType to) const override;
  [[nodiscard]] bool takes_pieces(c10::ScalarType from,
                                  c10::ScalarType to) const override;
  Pending reduce_scatter_pieces(std::span<const PiecewiseReduceCall> calls,
                                const CallLabel& label, ReduceOp op) override;
  Pending all_reduce(const at::Tensor& tensor, ReduceOp op,
                     const CallLabel& label) override;
  Pending broadcast(const at::Tensor& tensor, int root,
                    const CallLabel& label) override;

 private:
  template <class Body>
  Pending issue(const char* kind, const CallLabel& label, int64_t numel,
                c10::ScalarType dtype, size_t num_calls, Body&& body,
                const CallTerms& terms = {});

  [[nodiscard]] std::shared_ptr<PeerLink> link_peers();
  [[nodiscard]] bool by_link(std::span<const ReduceCall> calls) const;
  Pending sum_by_link(std::span<const PiecewiseReduceCall> calls,
                      const CallLabel& label, ReduceOp op);

  c10::intrusive_ptr<c10d::Backend> backend_;
  std::shared_ptr<PeerLink> link_;  // null where all goes by NCCL
};

}  // namespace tessera
