#include "tessera/comm/communicator_base.h"

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/cpu_communicator.h"
#include "tessera/comm/device_communicator.h"
#include "tessera/comm/reduce_op_name.h"
#include "tessera/module/gated_storage.h"

namespace tessera {
namespace {

std::string group_key(const std::string& name, const std::vector<int>& ranks) {
  std::string key = str("group/", name);
  for (const int rank : ranks) key += str("/", rank);
  return key;
}

int index_of(int rank, const std::vector<int>& ranks) {
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) -
                          ranks.begin());
}

}  // namespace

CommunicatorBase::CommunicatorBase(std::shared_ptr<World::State> world,
                                   std::string name,
                                   const std::vector<int>& ranks)
    : world_(std::move(world)),
      name_(std::move(name)),
      rank_(index_of(world_->place.rank, ranks)),
      size_(static_cast<int>(ranks.size())),
      rendezvous_(world_->store_of(group_key(name_, ranks)), rank_, size_,
                  world_->place.timeout,
                  [world = world_.get()] { return world->failed(); }) {}

void CommunicatorBase::barrier(const CallLabel& label) {
  world_->meet(name_, "barrier", label,
               [&] { rendezvous_.barrier("barrier"); });
}

void CommunicatorBase::check_later(DeferredCheck check) {
  world_->deferred.add(std::move(check));
}

void CommunicatorBase::run_due_checks() { world_->deferred.run_due(); }

std::vector<std::string> CommunicatorBase::exchange(std::string_view bytes,
                                                    const CallLabel& label) {
  return world_->meet(name_, "exchange", label,
                      [&] { return rendezvous_.exchange("bytes", bytes); });
}

void CommunicatorBase::check(const GatherCall& call,
                             const CallLabel& label) const {
  check_slots("all_gather", call.output, call.input,
              gathers_as(call.input.scalar_type(), call.output.scalar_type()),
              label);
  note_write_below_gate(call.output);
}

void CommunicatorBase::check(const ReduceCall& call,
                             const CallLabel& label) const {
  check_slots("reduce_scatter", call.input, call.output,
              sums_as(call.input.scalar_type(), call.output.scalar_type()),
              label);
  note_write_below_gate(call.output);
}

void CommunicatorBase::check(const PiecewiseReduceCall& call,
                             const CallLabel& label) const {
  const char* kind = "reduce_scatter_pieces";
  check(kind, call.output, label);
  note_write_below_gate(call.output);
  const int64_t whole = call.output.numel() * size_;
  int64_t end = 0;  // of the pieces so far
  for (const InputPiece& piece : call.pieces) {
    check(kind, piece.values, label);
    const int64_t numel = piece.values.numel();
    require<InvalidArgument>(
        piece.values.scalar_type() == call.dtype && piece.offset >= end &&
            piece.offset + numel <= whole,
        [&] {
          return tessera::str(kind, " on '", name_, "', unit '", label.unit,
                              "': got a piece of ", numel, ' ',
                              piece.values.scalar_type(), " elements at ",
                              piece.offset, "; expected ", call.dtype,
                              " between ", end, " and ", whole, '.');
        });
    end = piece.offset + numel;
  }
}

Pending CommunicatorBase::reduce_scatter_pieces(
    std::span<const PiecewiseReduceCall> /*calls*/, const CallLabel& label,
    ReduceOp /*op*/) {
  throw Unsupported(tessera::str(
      "reduce_scatter_pieces on '", name_, "', unit '", label.unit,
      "': this transport wants the input in one place; ask takes_pieces() and "
      "use reduce_scatter."));
}

void CommunicatorBase::check(const char* kind, const at::Tensor& tensor,
                             const CallLabel& label) const {
  require<InvalidArgument>(
      tensor.defined() && tensor.is_contiguous() &&
          tensor.device() == world_->place.device,
      [&] {
        return tessera::str(
            kind, " on '", name_, "', unit '", label.unit, "': got a tensor ",
            tensor.defined()
                ? tessera::str("on ", tensor.device(),
                               tensor.is_contiguous() ? "" : ", not contiguous")
                : str("that is undefined"),
            "; expected a contiguous one on ", world_->place.device, ".");
      });
}

void CommunicatorBase::check(ReduceOp op) const {
  require<InvalidArgument>(
      op == ReduceOp::sum || op == ReduceOp::min || op == ReduceOp::max, [&] {
        return str("all_reduce on '", name_, "': got another operation than ",
                   "sum, min or max; use distributed::all_reduce on a group ",
                   "of distributed::new_group.");
      });
}

void CommunicatorBase::give_up(const std::string& cause) {
  world_->raise(world_->log.enter_unhashed(name_, "comparison", {}), cause);
}

void CommunicatorBase::check_reduce_scatter(ReduceOp op) const {
  require<InvalidArgument>(
      op == ReduceOp::sum || (op == ReduceOp::avg && has_mean()), [&] {
        return str("reduce_scatter on '", name_, "': got ", name_of(op),
                   ", expected sum", has_mean() ? " or avg." : ".");
      });
}

void CommunicatorBase::check_slots(const char* kind, const at::Tensor& whole,
                                   const at::Tensor& part, bool dtypes_fit,
                                   const CallLabel& label) const {
  check(kind, whole, label);
  check(kind, part, label);
  require<InvalidArgument>(
      whole.numel() == part.numel() * size_ && dtypes_fit, [&] {
        return tessera::str(
            kind, " on '", name_, "', unit '", label.unit, "': got a whole of ",
            whole.numel(), " ", whole.scalar_type(), " elements and a part of ",
            part.numel(), " ", part.scalar_type(), "; expected ", size_,
            " parts of one dtype to make the whole.");
      });
}

std::shared_ptr<Communicator> make_backend_communicator(
    const std::shared_ptr<World::State>& world, const std::string& name,
    const std::vector<int>& ranks) {
  Routes routes = world->connect(name, ranks);
  if (world->place.device.is_cuda()) {
    return std::make_shared<DeviceCommunicator>(world, name, ranks,
                                                std::move(routes.backend));
  }
  return std::make_shared<CpuCommunicator>(
      world, name, ranks, std::make_shared<const Routes>(std::move(routes)));
}

at::Tensor slot_of(const at::Tensor& buffer, int slot, int slots) {
  const int64_t numel = buffer.numel() / slots;
  return buffer.view({-1}).narrow(0, slot * numel, numel);
}

}  // namespace tessera
