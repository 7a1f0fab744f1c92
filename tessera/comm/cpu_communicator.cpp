#include "tessera/comm/cpu_communicator.h"

#include <ATen/ops/empty.h>

#include <functional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/below_autograd.h"
#include "tessera/comm/pending.h"
#include "tessera/comm/rank_order_sum.h"
#include "tessera/comm/reduce_op_name.h"
#include "tessera/module/gated_storage.h"

namespace tessera {
namespace {

// Above this an all-reduce in one round would move too much.
constexpr int64_t kMaxOneRoundBytes = 64 << 10;

}  // namespace

// One collective from its entry in the log to its result.
class CpuCommunicator::Call final : public Pending::Impl {
 public:
  Call(std::shared_ptr<World::State> world,
       std::shared_ptr<const Routes> routes, uint64_t sequence,
       uint64_t identity)
      : world_(std::move(world)),
        sequence_(sequence),
        identity_(identity),
        transfer_(
            std::make_unique<Transfer>(world_->transfers, std::move(routes))) {}

  /// Each message of one round has the same tag on both sides. It is made from
  /// what the collective is, so that unlike collectives never meet: ranks that
  /// fall out of step wait for each other, and mix no data.
  void next_round() {
    tag_ = static_cast<int>(FnvHash(identity_).add(round_++).value() >> 33);
  }

  void send(const at::Tensor& tensor, int peer) {
    guarded([&] { transfer_->send(tensor, peer, tag_); });
  }
  void receive(const at::Tensor& tensor, int peer) {
    guarded([&] { transfer_->receive(tensor, peer, tag_); });
  }

  void when_here(std::function<void()> finish) {
    finishers_.push_back(std::move(finish));
  }

  /// Ends the messages so far, and takes new ones.
  void complete_messages() {
    world_->log.wait(sequence_);
    guarded([&] { transfer_->wait(world_->place.timeout); });
    const BelowAutograd below_autograd;
    for (const auto& finish : std::exchange(finishers_, {})) finish();
  }

  void wait() override {
    complete_messages();
    world_->log.finish(sequence_);
  }

  void drain() noexcept override {
    try {
      world_->log.wait(sequence_);
      transfer_->wait(world_->place.timeout);
      world_->log.finish(sequence_);
    } catch (const std::exception&) {
      // The result is not wanted; whoever waits for one learns of the failure.
    }
  }

 private:
  template <class Body>
  void guarded(Body&& body) {
    try {
      body();
    } catch (const std::exception& error) {
      world_->raise(sequence_, reason_of(error));
    }
  }

  std::shared_ptr<World::State> world_;
  uint64_t sequence_;
  uint64_t identity_;
  int64_t round_ = 0;
  int tag_ = 0;
  std::unique_ptr<Transfer> transfer_;
  std::vector<std::function<void()>> finishers_;
};

CpuCommunicator::CpuCommunicator(std::shared_ptr<World::State> world,
                                 std::string name,
                                 const std::vector<int>& ranks,
                                 std::shared_ptr<const Routes> routes)
    : CommunicatorBase(std::move(world), std::move(name), ranks),
      routes_(std::move(routes)) {}

std::unique_ptr<CpuCommunicator::Call> CpuCommunicator::begin(
    const char* kind, const CallLabel& label, int64_t numel,
    c10::ScalarType dtype, const CallTerms& terms) {
  const uint64_t sequence =
      log().enter(name(), kind, label, numel, dtype, terms);
  world()->begin(sequence);
  const uint64_t identity = FnvHash()
                                .add(count_++)
                                .add(kind)
                                .add(label.unit)
                                .add(numel)
                                .add(static_cast<int64_t>(dtype))
                                .add(terms.reduction)
                                .add(int64_t{terms.root})
                                .value();
  return std::make_unique<Call>(world(), routes_, sequence, identity);
}

Pending CpuCommunicator::all_gather(std::span<const GatherCall> calls,
                                    const CallLabel& label) {
  if (calls.empty()) return {};
  const BelowAutograd below_autograd;
  int64_t numel = 0;
  for (const GatherCall& call : calls) {
    check(call, label);
    numel += call.output.numel();
  }
  auto call = begin("all_gather", label, numel, calls[0].output.scalar_type());
  for (const GatherCall& tensors : calls) gather(*call, tensors);
  return Pending(std::move(call));
}

void CpuCommunicator::gather(Call& call, const GatherCall& tensors) {
  call.next_round();
  for (int step = 1; step < size(); ++step) {
    const int source = (rank() + size() - step) % size();
    call.receive(slot_of(tensors.output, source, size()), source);
  }
  for (int step = 1; step < size(); ++step) {
    call.send(tensors.input, (rank() + step) % size());
  }
  const at::Tensor own = slot_of(tensors.output, rank(), size());
  if (own.data_ptr() != tensors.input.data_ptr()) {
    own.copy_(tensors.input.view({-1}));
  }
}

Pending CpuCommunicator::reduce_scatter(std::span<const ReduceCall> calls,
                                        const CallLabel& label, ReduceOp op) {
  check_reduce_scatter(op);
  if (calls.empty()) return {};
  const BelowAutograd below_autograd;
  int64_t numel = 0;
  for (const ReduceCall& call : calls) {
    check(call, label);
    numel += call.input.numel();
  }
  auto call =
      begin("reduce_scatter", label, numel, calls[0].input.scalar_type(),
            {.reduction = name_of(ReduceOp::sum)});
  for (const ReduceCall& tensors : calls) reduce(*call, tensors);
  return Pending(std::move(call));
}

bool CpuCommunicator::sums_as(c10::ScalarType from, c10::ScalarType to) const {
  const bool half = from == at::kBFloat16 || from == at::kHalf;
  return from == to || (half && to == at::kFloat);
}

void CpuCommunicator::reduce(Call& call, const ReduceCall& tensors) {
  call.next_round();
  std::vector<at::Tensor> pieces(size());
  pieces[rank()] = slot_of(tensors.input, rank(), size());
  for (int step = 1; step < size(); ++step) {
    const int source = (rank() + size() - step) % size();
    pieces[source] = at::empty_like(pieces[rank()]);
    call.receive(pieces[source], source);
  }
  for (int step = 1; step < size(); ++step) {
    const int target = (rank() + step) % size();
    call.send(slot_of(tensors.input, target, size()), target);
  }
  call.when_here(
      [output = tensors.output.view({-1}), pieces = std::move(pieces)] {
        combine_in_rank_order(output, pieces, ReduceOp::sum);
      });
}

Pending CpuCommunicator::all_reduce(const at::Tensor& tensor, ReduceOp op,
                                    const CallLabel& label) {
  const BelowAutograd below_autograd;
  check("all_reduce", tensor, label);
  check(op);
  note_write_below_gate(tensor);
  auto call = begin("all_reduce", label, tensor.numel(), tensor.scalar_type(),
                    {.reduction = name_of(op)});
  const bool small = tensor.numel() < size() ||
                     static_cast<int64_t>(tensor.nbytes()) <= kMaxOneRoundBytes;
  if (small || size() <= 2) {
    all_to_all_sum(*call, tensor.view({-1}), op);
  } else {
    reduce_then_gather(*call, tensor.view({-1}), op);
  }
  return Pending(std::move(call));
}

void CpuCommunicator::all_to_all_sum(Call& call, const at::Tensor& tensor,
                                     ReduceOp op) {
  call.next_round();
  std::vector<at::Tensor> pieces(size());
  pieces[rank()] = tensor;
  for (int step = 1; step < size(); ++step) {
    const int source = (rank() + size() - step) % size();
    pieces[source] = at::empty_like(tensor);
    call.receive(pieces[source], source);
    call.send(tensor, (rank() + step) % size());
  }
  call.when_here([tensor, pieces = std::move(pieces), op] {
    combine_in_rank_order(tensor, pieces, op);
  });
}

// The first half is waited for here: done in `wait`, it would hang when ranks
// wait for two calls in different orders.
void CpuCommunicator::reduce_then_gather(Call& call, const at::Tensor& tensor,
                                         ReduceOp op) {
  const std::vector<at::Tensor> slots = tensor.tensor_split(size());
  std::vector<at::Tensor> pieces(size());
  pieces[rank()] = slots[rank()];
  call.next_round();
  for (int step = 1; step < size(); ++step) {
    const int source = (rank() + size() - step) % size();
    const int target = (rank() + step) % size();
    pieces[source] = at::empty_like(pieces[rank()]);
    call.receive(pieces[source], source);
    call.send(slots[target], target);
  }
  call.when_here([&] { combine_in_rank_order(slots[rank()], pieces, op); });
  call.complete_messages();
  call.next_round();
  for (int step = 1; step < size(); ++step) {
    const int source = (rank() + size() - step) % size();
    call.receive(slots[source], source);
    call.send(slots[rank()], (rank() + step) % size());
  }
}

Pending CpuCommunicator::broadcast(const at::Tensor& tensor, int root,
                                   const CallLabel& label) {
  const BelowAutograd below_autograd;
  check("broadcast", tensor, label);
  require<InvalidArgument>(root >= 0 && root < size(), [&] {
    return str("broadcast on '", name(), "': got root ", root, "; expected 0..",
               size() - 1, ".");
  });
  note_write_below_gate(tensor);
  auto call = begin("broadcast", label, tensor.numel(), tensor.scalar_type(),
                    {.root = root});
  call->next_round();
  if (rank() != root) {
    call->receive(tensor, root);
  } else {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != root) call->send(tensor, peer);
    }
  }
  return Pending(std::move(call));
}

}  // namespace tessera
