#include "tessera/comm/device_communicator.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/comm/below_autograd.h"
#include "tessera/comm/pending.h"
#include "tessera/comm/reduce_op_name.h"
#include "tessera/device/capture.h"
#include "tessera/module/gated_storage.h"

namespace tessera {
namespace {

// The call is on its stream already; only the log has to learn of the end.
class IssuedCall final : public Pending::Impl {
 public:
  IssuedCall(std::shared_ptr<World::State> world, uint64_t sequence)
      : world_(std::move(world)), sequence_(sequence) {}

  void wait() override { world_->log.finish(sequence_); }
  void drain() noexcept override { world_->log.finish(sequence_); }

 private:
  std::shared_ptr<World::State> world_;
  uint64_t sequence_;
};

// On the current stream, not on one of NCCL's own.
template <class Options>
Options on_current_stream() {
  Options options;
  options.asyncOp = false;
  return options;
}

c10d::ReduceOp to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::min:
      return c10d::ReduceOp::MIN;
    case ReduceOp::max:
      return c10d::ReduceOp::MAX;
    case ReduceOp::avg:
      return c10d::ReduceOp::AVG;
    default:
      break;
  }
  throw InvalidArgument("a collective: unknown ReduceOp.");
}

void copy_unless_same(const at::Tensor& to, const at::Tensor& from) {
  if (to.data_ptr() != from.data_ptr()) to.view({-1}).copy_(from.view({-1}));
}

template <class Call>
int64_t numel_of(std::span<const Call> calls, at::Tensor Call::*whole) {
  int64_t numel = 0;
  for (const Call& call : calls) numel += (call.*whole).numel();
  return numel;
}

std::vector<PiecewiseReduceCall> as_pieces(std::span<const ReduceCall> calls) {
  std::vector<PiecewiseReduceCall> pieces;
  for (const ReduceCall& call : calls) {
    pieces.push_back({.output = call.output,
                      .dtype = call.input.scalar_type(),
                      .pieces = {{.values = call.input, .offset = 0}}});
  }
  return pieces;
}

}  // namespace

DeviceCommunicator::DeviceCommunicator(
    std::shared_ptr<World::State> world, std::string name,
    const std::vector<int>& ranks, c10::intrusive_ptr<c10d::Backend> backend)
    : CommunicatorBase(std::move(world), std::move(name), ranks),
      backend_(std::move(backend)),
      link_(link_peers()) {}

// A NCCL backend that is dropped without shutdown keeps its communicator, and
// may hang or crash at the end of the process.
DeviceCommunicator::~DeviceCommunicator() {
  if (!backend_) return;
  try {
    backend_->shutdown();
  } catch (const std::exception& error) {
    log_warning("communicator ", name(), " did not shut down: ", error.what());
  }
}

std::shared_ptr<PeerLink> DeviceCommunicator::link_peers() {
  const std::string_view purpose = purpose_of(name());
  const bool wanted = world()->place.transport == Transport::copy_engines &&
                      (purpose == "gather" || purpose == "reduce");
  if (!wanted || size() == 1) return nullptr;
  return world()->peers.connect(
      {.rank = rank(),
       .size = size(),
       .device = device(),
       .window_mib = world()->place.window_mib},
      [this](std::string_view bytes) { return exchange(bytes, {}); },
      str("communicator ", name()));
}

template <class Body>
Pending DeviceCommunicator::issue(const char* kind, const CallLabel& label,
                                  int64_t numel, c10::ScalarType dtype,
                                  size_t num_calls, Body&& body,
                                  const CallTerms& terms) {
  const uint64_t sequence =
      log().enter(name(), kind, label, numel, dtype, terms);
  world()->begin(sequence);
  // Where the capture failed on some ranks, all the same.
  if (link_ && world()->replayed.prepared()) link_->expect_replays();
  const bool coalesce = num_calls > 1 && backend_ != nullptr;
  try {
    if (coalesce) backend_->startCoalescing();
    body();
    if (coalesce) backend_->endCoalescing();
    if (capturing(device())) {
      world()->replayed.note(log().at(sequence));
    } else if (link_) {
      link_->watch(log().at(sequence));
    }
  } catch (const std::exception& error) {
    world()->raise(sequence, reason_of(error));
  }
  return Pending(std::make_unique<IssuedCall>(world(), sequence));
}

bool DeviceCommunicator::gathers_as(c10::ScalarType from,
                                    c10::ScalarType to) const {
  return from == to || (link_ && link_->casts(from, to));
}

bool DeviceCommunicator::sums_as(c10::ScalarType from,
                                 c10::ScalarType to) const {
  return from == to || (link_ && link_->sums(from, to));
}

bool DeviceCommunicator::by_link(std::span<const ReduceCall> calls) const {
  return link_ &&
         std::all_of(calls.begin(), calls.end(), [&](const ReduceCall& call) {
           return link_->sums(call.input.scalar_type(),
                              call.output.scalar_type());
         });
}

Pending DeviceCommunicator::all_gather(std::span<const GatherCall> calls,
                                       const CallLabel& label) {
  if (calls.empty()) return {};
  const BelowAutograd below_autograd;
  for (const GatherCall& call : calls) check(call, label);
  return issue("all_gather", label, numel_of(calls, &GatherCall::output),
               calls[0].output.scalar_type(), link_ ? 1 : calls.size(), [&] {
                 if (link_) return link_->all_gather(calls);
                 for (GatherCall call : calls) {
                   if (call.input.numel() == 0) continue;
                   if (!backend_) {
                     copy_unless_same(call.output, call.input);
                     continue;
                   }
                   backend_->_allgather_base(
                       call.output, call.input,
                       on_current_stream<c10d::AllgatherOptions>());
                 }
               });
}

Pending DeviceCommunicator::reduce_scatter(std::span<const ReduceCall> calls,
                                           const CallLabel& label,
                                           ReduceOp op) {
  check_reduce_scatter(op);
  if (calls.empty()) return {};
  const BelowAutograd below_autograd;
  for (const ReduceCall& call : calls) check(call, label);
  if (by_link(calls)) return sum_by_link(as_pieces(calls), label, op);
  return issue(
      "reduce_scatter", label, numel_of(calls, &ReduceCall::input),
      calls[0].input.scalar_type(), calls.size(),
      [&] {
        for (ReduceCall call : calls) {
          if (call.output.numel() == 0) continue;
          if (!backend_) {
            copy_unless_same(call.output, call.input);
            continue;
          }
          auto options = on_current_stream<c10d::ReduceScatterOptions>();
          options.reduceOp = to_c10d(op);
          backend_->_reduce_scatter_base(call.output, call.input, options);
        }
      },
      {.reduction = name_of(op)});
}

bool DeviceCommunicator::takes_pieces(c10::ScalarType from,
                                      c10::ScalarType to) const {
  return link_ && link_->sums(from, to);
}

Pending DeviceCommunicator::reduce_scatter_pieces(
    std::span<const PiecewiseReduceCall> calls, const CallLabel& label,
    ReduceOp op) {
  check_reduce_scatter(op);
  if (calls.empty()) return {};
  const BelowAutograd below_autograd;
  for (const PiecewiseReduceCall& call : calls) {
    if (!takes_pieces(call.dtype, call.output.scalar_type())) {
      return CommunicatorBase::reduce_scatter_pieces(calls, label, op);
    }
    check(call, label);
  }
  return sum_by_link(calls, label, op);
}

Pending DeviceCommunicator::sum_by_link(
    std::span<const PiecewiseReduceCall> calls, const CallLabel& label,
    ReduceOp op) {
  const int64_t numel = numel_of(calls, &PiecewiseReduceCall::output) * size();
  return issue("reduce_scatter", label, numel, calls[0].dtype, 1,
               [&] {
                 link_->reduce_scatter(calls,
                                       op == ReduceOp::avg ? 1.0 / size() : 1);
               },
               {.reduction = name_of(op)});
}

Pending DeviceCommunicator::all_reduce(const at::Tensor& tensor, ReduceOp op,
                                       const CallLabel& label) {
  const BelowAutograd below_autograd;
  check("all_reduce", tensor, label);
  check(op);
  note_write_below_gate(tensor);
  return issue("all_reduce", label, tensor.numel(), tensor.scalar_type(), 1,
               [&] {
                 if (!backend_ || tensor.numel() == 0) return;
                 auto options = on_current_stream<c10d::AllreduceOptions>();
                 options.reduceOp = to_c10d(op);
                 std::vector<at::Tensor> tensors = {tensor};
                 backend_->allreduce(tensors, options);
               },
               {.reduction = name_of(op)});
}

Pending DeviceCommunicator::broadcast(const at::Tensor& tensor, int root,
                                      const CallLabel& label) {
  const BelowAutograd below_autograd;
  check("broadcast", tensor, label);
  require<InvalidArgument>(root >= 0 && root < size(), [&] {
    return str("broadcast on '", name(), "': got root ", root, "; expected 0..",
               size() - 1, ".");
  });
  note_write_below_gate(tensor);
  return issue("broadcast", label, tensor.numel(), tensor.scalar_type(), 1,
               [&] {
                 if (!backend_ || tensor.numel() == 0) return;
                 auto options = on_current_stream<c10d::BroadcastOptions>();
                 options.rootRank = root;
                 std::vector<at::Tensor> tensors = {tensor};
                 backend_->broadcast(tensors, options);
               },
               {.root = root});
}

}  // namespace tessera
