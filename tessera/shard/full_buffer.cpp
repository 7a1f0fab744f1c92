#include "tessera/shard/full_buffer.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <utility>

#include "tessera/base/error.h"
#include "tessera/module/gate.h"
#include "tessera/module/linked_autograd_meta.h"
#include "tessera/module/meta_memory.h"
#include "tessera/shard/below.h"
#include "tessera/shard/step_phase.h"
#include "tessera/shard/trace_range.h"

namespace tessera {

FullBuffer::FullBuffer(std::shared_ptr<const GroupPlan> plan, ShardSet& shards)
    : plan_(std::move(plan)), shards_(shards) {}

FullBuffer::~FullBuffer() {
  if (storage_) static_cast<GatedStorage*>(storage_)->set_on_death(nullptr);
}

void FullBuffer::take_over(const std::vector<FoundParameter>& parameters,
                           const std::shared_ptr<StorageOwner>& owner) {
  const auto device = plan_->lanes->device;
  auto storage = c10::make_intrusive<GatedStorage>(
      plan_->full_bytes(), no_memory(device), c10::GetAllocator(device.type()),
      owner, nullptr);
  storage->set_on_death(&storage_);
  storage_ = storage.get();
  for (size_t i = 0; i < parameters.size(); ++i) {
    at::Tensor full = parameters[i].tensor;
    full_.emplace_back(full.getIntrusivePtr());
    if (full.is_meta()) leave_meta(full, storage_);
    point_at_storage(i);
    shards_.set_owner(i, owner);
    link_requires_grad(full, shards_[i]);
    for (const ParameterOwner& at : parameters[i].owners) {
      set_entry(at, shards_[i]);
    }
  }
}

void FullBuffer::point_at_storage(size_t i) const {
  const auto& place = plan_->layout.parameters()[i];
  at::Tensor full = parameter(i);
  torch::NoGradGuard no_grad;
  GateOff off;
  full.set_data(tensor_over(storage_, plan_->options.compute_dtype,
                            place.full_offset, plan_->sizes[i],
                            plan_->full_strides(i)));
  add_gate_key(full);  // set_data has replaced the key set
}

at::Tensor FullBuffer::parameter(size_t i) const {
  return at::Tensor(full_[i].lock());
}

// One rank holds everything in the compute dtype already: the full parameters
// are the master.
bool FullBuffer::aliases_master() const {
  return plan_->layout.world_size() == 1 &&
         plan_->master_device() == plan_->lanes->device &&
         !plan_->options.transform &&
         plan_->options.compute_dtype == plan_->options.master_dtype &&
         plan_->layout.full_numel() == plan_->layout.shard_numel();
}

void FullBuffer::check_members() const {
  for (size_t i = 0; i < full_.size(); ++i) {
    const at::Tensor full = parameter(i);
    if (!full.defined()) continue;
    require<InvalidState>(
        full.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() ==
            storage_,
        [&] {
          return str("the module's member for parameter '", shards_.name(i),
                     "' was given other data (set_data, module->to, a load "
                     "into the member). It is part of a sharded unit: write it "
                     "inside a FullParameters scope.");
        });
  }
}

void FullBuffer::allocate() {
  if (aliases_master()) {
    void* data = shards_.master()->data.data_ptr();
    storage_->set_data_ptr_noswap(at::DataPtr(data, plan_->lanes->device));
    return;
  }
  const auto device = plan_->lanes->device;
  storage_->set_data_ptr_noswap(
      plan_->all_gather
          ? plan_->all_gather->allocate(storage_->nbytes(), device)
          : c10::GetAllocator(device.type())->allocate(storage_->nbytes()));
}

at::Tensor FullBuffer::full_flat() const {
  return tensor_over(storage_, plan_->options.compute_dtype, 0,
                     {plan_->layout.full_numel()});
}

// What need not be cast here is sent from where it lies.
std::vector<GatherCall> FullBuffer::gather_calls(
    const at::Tensor& full_flat, const at::Tensor& source) const {
  const bool sent_as_it_lies =
      plan_->layout.world_size() > 1 &&
      (source.is_same(shards_.master()->copy) ||
       is_cast_on_its_way(source, full_flat.scalar_type()));
  std::vector<GatherCall> calls;
  for (const FlatBuffer& buffer : plan_->layout.buffers()) {
    const int64_t part = buffer.shard_numel;
    at::Tensor output = full_flat.narrow(0, buffer.full_offset,
                                         part * plan_->layout.world_size());
    at::Tensor slot = output.narrow(0, plan_->layout_rank() * part, part);
    const at::Tensor own = source.narrow(0, buffer.shard_offset, part);
    if (sent_as_it_lies) {
      calls.push_back({output, own});
      continue;
    }
    slot.copy_(own, /*non_blocking=*/true);
    calls.push_back({output, slot});
  }
  return calls;
}

bool FullBuffer::is_cast_on_its_way(const at::Tensor& source,
                                    c10::ScalarType to) const {
  return !plan_->all_gather && source.device() == plan_->lanes->device &&
         source.scalar_type() != to &&
         plan_->lanes->gather->gathers_as(source.scalar_type(), to);
}

// Of each buffer, the keepers hold equal parts in the order of their ranks.
std::vector<GatherCall> FullBuffer::keeper_calls(const at::Tensor& full_flat,
                                                 const at::Tensor& kept) const {
  const auto& keepers = *plan_->options.keepers;
  std::vector<GatherCall> calls;
  int64_t offset = 0;
  for (const FlatBuffer& buffer : plan_->layout.buffers()) {
    const int64_t numel = buffer.shard_numel * plan_->layout.world_size();
    const int64_t part = numel / keepers.size();
    calls.push_back({full_flat.narrow(0, buffer.full_offset, numel),
                     kept.narrow(0, offset, part)});
    offset += part;
  }
  return calls;
}

bool FullBuffer::kept_by_keepers() const {
  return kept_.defined() && kept_version_ == shards_.version();
}

void FullBuffer::reshard_to_keepers() {
  if (!plan_->options.keepers || !storage_ || state_ == State::sharded) {
    reshard();
    return;
  }
  finish_gather();
  Below below;
  const at::Tensor full_flat = this->full_flat();
  int64_t numel = 0;
  for (const FlatBuffer& buffer : plan_->layout.buffers()) {
    numel += buffer.shard_numel * plan_->layout.world_size();
  }
  const auto& keepers = *plan_->options.keepers;
  at::Tensor kept = at::empty({numel / keepers.size()}, full_flat.options());
  for (const GatherCall& call : keeper_calls(full_flat, kept)) {
    const int64_t part = call.input.numel();
    call.input.copy_(call.output.narrow(0, keepers.rank() * part, part));
  }
  const uint32_t version = *gathered_version_;
  reshard();
  kept_ = std::move(kept);
  kept_version_ = version;
}

Pending FullBuffer::all_gather(const std::vector<GatherCall>& calls,
                               Communicator& over, const CallLabel& label) {
  return plan_->all_gather ? plan_->all_gather->start(calls, over, label)
                           : over.all_gather(calls, label);
}

Pending FullBuffer::start_collective(From from, const CallLabel& label) {
  const at::Tensor full_flat = this->full_flat();
  if (plan_->options.debug == Debug::poison_memory) fill_unset(full_flat);
  // The memory comes from the compute stream: the gather waits for what that
  // stream did with it before, and for the last writes to the master.
  gather_issued_.record(current_stream(plan_->lanes->device));
  gather_issued_.block(plan_->lanes->gather_stream);
  StreamScope scope(plan_->lanes->gather_stream);
  Communicator& over_all = *plan_->lanes->gather;
  Pending pending;
  if (from == From::keepers && kept_by_keepers()) {
    pending = all_gather(keeper_calls(full_flat, kept_),
                         *plan_->options.keepers, label);
  } else if (plan_->options.transform) {
    const auto calls = transformed_.begin(*plan_, shards_.master()->data);
    if (!calls.empty()) pending = all_gather(calls, over_all, label);
    // On CPU it has not come yet.
    if (!plan_->lanes->device.is_cpu()) transformed_.finish(*plan_, full_flat);
  } else {
    shards_.master()->refresh_copy();
    const auto calls = gather_calls(full_flat, shards_.master()->sent());
    if (plan_->layout.world_size() > 1)
      pending = all_gather(calls, over_all, label);
  }
  gather_done_.record(plan_->lanes->gather_stream);
  return pending;
}

void FullBuffer::start_gather(From from, const CallLabel& label) {
  if (state_ != State::sharded || !storage_) return;
  const TraceRange range("FSDP::all_gather", label.unit);
  require<InvalidState>(shards_.has_values(), [&] {
    return str("unit '", label.unit,
               "' has no values yet, for it was built on "
               "the meta device (first parameter: '",
               shards_.name(0),
               "'). Call materialize(model), or set all of its parameters "
               "inside a FullParameters scope.");
  });
  Below below;
  check_members();
  shards_.adopt_replaced();
  if (plan_->options.keeps_copy()) {
    shards_.master()->ensure_copy(plan_->options.compute_dtype);
  }
  allocate();
  gathered_version_ = shards_.version();
  state_ = State::gathering;
  if (!aliases_master()) gather_ = start_collective(from, label);
}

void FullBuffer::finish_gather() {
  if (state_ != State::gathering) return;
  const TraceRange range("FSDP::all_gather_copy_out");
  gather_.wait();
  gather_ = {};
  if (transformed_.under_way()) {
    Below below;
    transformed_.finish(*plan_, full_flat());
  }
  gather_done_.block(current_stream(plan_->lanes->device));
  // Nothing later waits for the copy from the host, where the shards may be
  // written next.
  if (plan_->options.offload && !in_training()) gather_done_.synchronize();
  kept_.reset();
  state_ = State::gathered;
}

void FullBuffer::reshard() {
  if (state_ == State::sharded) {
    kept_.reset();
    return;
  }
  finish_gather();  // before it lets go of what the gather reads
  state_ = State::sharded;
  if (!storage_) return;
  Below below;
  if (plan_->options.debug == Debug::poison_memory && !aliases_master()) {
    fill_unset(full_flat());
  }
  storage_->set_data_ptr_noswap(no_memory(plan_->lanes->device));
}

}  // namespace tessera
