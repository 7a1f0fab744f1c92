// Collectives on CPU, each one round of messages between all pairs of ranks.
//
//   gather   every rank receives every slot straight into the output buffer
//   reduce   every rank receives its own slot of every rank, and sums them
//
// c10d's Gloo backend gathers into a temporary and reduces by an all-reduce of
// the whole buffer; here nothing is copied, W - 1 slots travel, and sums are
// taken in rank order, of bfloat16 and half in float32 with one rounding (see
// rank_order_sum.h); all_reduce too. The price is that one rank talks to all
// others at once: right for the tens of ranks that CPU jobs have. Ranks of one
// machine talk through shared memory (host_link.h), which takes less than half
// of the time that Gloo's TCP connections take.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/communicator_base.h"
#include "tessera/comm/routes.h"

namespace tessera {

class CpuCommunicator final : public CommunicatorBase {
 public:
  CpuCommunicator(std::shared_ptr<World::State> world, std::string name,
                  const std::vector<int>& ranks,
                  std::shared_ptr<const Routes> routes);

  Pending all_gather(std::span<const GatherCall> calls,
                     const CallLabel& label) override;
  Pending reduce_scatter(std::span<const ReduceCall> calls,
                         const CallLabel& label, ReduceOp op) override;
  /// Also 16 bits as float32.
  [[nodiscard]] bool sums_as(c10::ScalarType from,
                             c10::ScalarType to) const override;
  Pending all_reduce(const at::Tensor& tensor, ReduceOp op,
                     const CallLabel& label) override;
  Pending broadcast(const at::Tensor& tensor, int root,
                    const CallLabel& label) override;

 private:
  class Call;

  [[nodiscard]] std::unique_ptr<Call> begin(const char* kind,
                                            const CallLabel& label,
                                            int64_t numel,
                                            c10::ScalarType dtype,
                                            const CallTerms& terms = {});
  void gather(Call& call, const GatherCall& tensors);
  void reduce(Call& call, const ReduceCall& tensors);
  void all_to_all_sum(Call& call, const at::Tensor& tensor, ReduceOp op);
  void reduce_then_gather(Call& call, const at::Tensor& tensor, ReduceOp op);

  std::shared_ptr<const Routes> routes_;
  int64_t count_ = 0;  // collectives so far
};

}  // namespace tessera
