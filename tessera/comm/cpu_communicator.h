// Collectives on CPU, each one round of messages between all pairs of ranks.
//
//   gather   every rank receives every slot straight into the output buffer
//   reduce   every rank receives its own slot of every rank, and sums them
//
// c10d's Gloo backend gathers into a temporary and reduces by an all-reduce of
// the whole buffer; here nothing is copied, W - 1 slots travel, and sums are
// taken in rank order, of bfloat16 and half in float32 with one rounding (see
// rank_order_sum.h); all_reduce too. The price is that one rank talks to all
// others at once: right for the tens of ranks that CPU jobs have.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/communicator_base.h"

namespace tessera {

class CpuCommunicator final : public CommunicatorBase {
 public:
  /// `backend` is empty for a group of one.
  CpuCommunicator(std::shared_ptr<World::State> world, std::string name,
                  const std::vector<int>& ranks,
                  c10::intrusive_ptr<c10d::Backend> backend);

  Pending all_gather(std::span<const GatherCall> calls,
                     const CallLabel& label) override;
  Pending reduce_scatter(std::span<const ReduceCall> calls,
                         const CallLabel& label) override;
  Pending all_reduce(const at::Tensor& tensor, ReduceOp op,
                     const CallLabel& label) override;
  Pending broadcast(const at::Tensor& tensor, int root,
                    const CallLabel& label) override;

 private:
  class Call;

  [[nodiscard]] std::unique_ptr<Call> begin(const char* kind,
                                            const CallLabel& label,
                                            int64_t numel,
                                            c10::ScalarType dtype);
  void gather(Call& call, const GatherCall& tensors);
  void reduce(Call& call, const ReduceCall& tensors);
  void all_to_all_sum(Call& call, const at::Tensor& tensor, ReduceOp op);
  void reduce_then_gather(Call& call, const at::Tensor& tensor, ReduceOp op);

  c10::intrusive_ptr<c10d::Backend> backend_;
  int64_t count_ = 0;  // collectives so far
};

}  // namespace tessera
