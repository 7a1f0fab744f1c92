#include "tessera/shard/parameter_group.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/module/gate.h"
#include "tessera/module/linked_autograd_meta.h"
#include "tessera/module/meta_memory.h"
#include "tessera/tensor/shard_tensor.h"

namespace tessera {

namespace {

// Neither autograd nor the gate sees what the engine does with its own memory.
struct Below {
  at::AutoDispatchBelowADInplaceOrView autograd;
  GateOff gate;
};

at::DataPtr no_memory(c10::Device device) { return {nullptr, device}; }

// A pass over the gap and pad elements would cost more than they are worth: the
// whole input is zeroed when a parameter has no gradient or there are gaps.
int64_t parameter_numel(const FlatLayout& layout) {
  int64_t sum = 0;
  for (const auto& parameter : layout.parameters()) sum += parameter.numel;
  return sum;
}

Box box_of(const LocalPiece& piece, const std::vector<int64_t>& sizes) {
  Box box{std::vector<int64_t>(sizes.size(), 0), sizes};
  box.offsets[0] = piece.first_row;
  box.lengths[0] = piece.num_rows;
  return box;
}

std::vector<int64_t> shard_sizes(const LocalPiece& piece,
                                 std::vector<int64_t> sizes) {
  sizes[0] = piece.num_rows;
  return sizes;
}

}  // namespace

ParameterGroup::ParameterGroup(std::vector<FoundParameter> parameters,
                               const GroupOptions& options,
                               std::shared_ptr<const ShardLanes> lanes)
    : options_(options), lanes_(std::move(lanes)) {
  for (const auto& found : parameters) {
    sizes_.push_back(found.tensor.sizes().vec());
  }
  const int64_t parts = options_.strategy == Strategy::shard ? lanes_->size() : 1;
  layout_ = plan_flat_layout(
      sizes_,
      {.world_size = parts,
       .compute_bytes = static_cast<int64_t>(
           c10::elementSize(options_.compute_dtype)),
       .reduce_bytes = static_cast<int64_t>(
           c10::elementSize(options_.reduce_dtype))});
  for (size_t i = 0; i < sizes_.size(); ++i) {
    pieces_.push_back(layout_.piece(i, layout_rank()));
  }
  held_.resize(sizes_.size());
  make_master(parameters);
  make_shards(parameters);
  before_ = std::move(parameters);
}

ParameterGroup::~ParameterGroup() {
  if (storage_) static_cast<GatedStorage*>(storage_)->set_on_death(nullptr);
}

int64_t ParameterGroup::layout_rank() const {
  return options_.strategy == Strategy::shard ? lanes_->rank() : 0;
}

void ParameterGroup::make_master(
    const std::vector<FoundParameter>& parameters) {
  torch::NoGradGuard no_grad;
  GateOff off;
  auto* allocator = c10::GetAllocator(lanes_->device.type());
  const size_t bytes =
      layout_.shard_numel() * c10::elementSize(options_.master_dtype);
  guard_ = std::make_shared<ShardGuard>("shard");
  grad_guard_ = std::make_shared<ShardGuard>("gradient of the shard");
  auto storage = c10::make_intrusive<GatedStorage>(
      bytes, allocator->allocate(bytes), allocator, nullptr, guard_);
  master_ = std::make_shared<FlatMaster>();
  master_->data = tensor_over(storage.get(), options_.master_dtype, 0,
                              {layout_.shard_numel()});
  master_->data.zero_();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& value = parameters[i].tensor;
    const LocalPiece& piece = pieces_[i];
    if (value.is_meta()) has_values_ = false;
    if (value.is_meta() || piece.numel == 0) continue;
    master_->data.narrow(0, piece.shard_offset, piece.numel)
        .copy_(value.detach().narrow(0, piece.first_row, piece.num_rows)
                   .reshape(-1));
  }
}

void ParameterGroup::make_shards(
    const std::vector<FoundParameter>& parameters) {
  std::vector<ShardGuard::Named> names;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const LocalPiece& piece = pieces_[i];
    auto spread = std::make_shared<Spread>();
    spread->name = parameters[i].name;
    spread->global_sizes = sizes_[i];
    if (piece.numel > 0) spread->boxes.push_back(box_of(piece, sizes_[i]));
    spread->piece = {piece.shard_offset, piece.numel};
    spread->master = master_;
    if (options_.strategy == Strategy::shard) {
      spread->communicator = lanes_->control;
    }
    if (piece.numel > 0) master_->pieces.push_back(spread->piece);
    names.push_back({piece.shard_offset, piece.numel, spread->name});
    spreads_.push_back(spread);
    shards_.push_back(make_shard(spread, shard_sizes(piece, sizes_[i])));
  }
  std::sort(master_->pieces.begin(), master_->pieces.end(),
            [](const auto& a, const auto& b) { return a.offset < b.offset; });
  guard_->set_names(names);
  grad_guard_->set_names(std::move(names));
}

void ParameterGroup::take_over(const std::shared_ptr<StorageOwner>& owner) {
  const auto device = lanes_->device;
  auto storage = c10::make_intrusive<GatedStorage>(
      full_bytes(), no_memory(device), c10::GetAllocator(device.type()), owner,
      nullptr);
  storage->set_on_death(&storage_);
  storage_ = storage.get();
  for (size_t i = 0; i < before_.size(); ++i) {
    at::Tensor full = before_[i].tensor;
    full_.emplace_back(full.getIntrusivePtr());
    if (full.is_meta()) leave_meta(full, storage_);
    point_full_at_storage(i);
    spreads_[i]->owner = owner;
    link_requires_grad(full, shards_[i]);
    for (const ParameterOwner& at : before_[i].owners) {
      set_entry(at, shards_[i]);
    }
  }
  before_.clear();
}

void ParameterGroup::point_full_at_storage(size_t i) const {
  const auto& place = layout_.parameters()[i];
  at::Tensor parameter = full(i);
  torch::NoGradGuard no_grad;
  GateOff off;
  parameter.set_data(tensor_over(storage_, options_.compute_dtype,
                                 place.full_offset, sizes_[i]));
  add_gate_key(parameter);  // set_data has replaced the key set
}

at::Tensor ParameterGroup::full(size_t i) const {
  return at::Tensor(full_[i].lock());
}

const std::string& ParameterGroup::name(size_t i) const {
  return spreads_[i]->name;
}

void ParameterGroup::rename(size_t i, const std::string& name) {
  spreads_[i]->name = name;
  std::vector<ShardGuard::Named> names;
  for (const auto& spread : spreads_) {
    names.push_back({spread->piece.offset, spread->piece.numel, spread->name});
  }
  guard_->set_names(names);
  grad_guard_->set_names(std::move(names));
}

uint32_t ParameterGroup::version() const {
  return master_->data.unsafeGetTensorImpl()->version_counter()
      .current_version();
}

int64_t ParameterGroup::full_bytes() const {
  return layout_.full_numel() *
         static_cast<int64_t>(c10::elementSize(options_.compute_dtype));
}

size_t ParameterGroup::num_trainable() const {
  size_t count = 0;
  for (size_t i = 0; i < shards_.size(); ++i) {
    // A parameter whose full tensor is gone (its member was tied to another)
    // gets no gradient any more.
    if (trainable(i) && !full_[i].expired()) ++count;
  }
  return count;
}

// Gather ------------------------------------------------------------------

// One rank holds everything in the compute dtype already: the full parameters
// are the master.
bool ParameterGroup::aliases_master() const {
  return layout_.world_size() == 1 &&
         options_.compute_dtype == options_.master_dtype &&
         layout_.full_numel() == layout_.shard_numel();
}

// torch::load and others give a shard another storage below set_data: its values
// are taken over, or it is an error.
void ParameterGroup::adopt_replaced_shards() {
  for (size_t i = 0; i < shards_.size(); ++i) {
    auto* impl = shard_impl_of(shards_[i]);
    const auto* home = master_->data.storage().unsafeGetStorageImpl();
    if (impl->unsafe_storage().unsafeGetStorageImpl() == home) continue;
    const at::Tensor given = shards_[i].detach();
    require<InvalidState>(
        given.numel() == pieces_[i].numel &&
            given.scalar_type() == options_.master_dtype,
        [&] {
          return str("parameter '", name(i), "' was given data of shape ",
                     given.sizes(), " ", given.dtype().name(),
                     ", but this rank's shard has ", pieces_[i].numel, " ",
                     options_.master_dtype,
                     " elements. Load whole parameters inside a FullParameters "
                     "scope.");
        });
    master_->data.narrow(0, pieces_[i].shard_offset, pieces_[i].numel)
        .copy_(given.reshape(-1));
    restore_shard(*impl, shard_sizes(pieces_[i], sizes_[i]));
    master_->data.unsafeGetTensorImpl()->bump_version();
  }
}

void ParameterGroup::check_members() const {
  for (size_t i = 0; i < full_.size(); ++i) {
    const at::Tensor parameter = full(i);
    if (!parameter.defined()) continue;
    require<InvalidState>(
        parameter.unsafeGetTensorImpl()->unsafe_storage()
                .unsafeGetStorageImpl() == storage_,
        [&] {
          return str("the module's member for parameter '", name(i),
                     "' was given other data (set_data, module->to, a load "
                     "into the member). It is part of a sharded unit: write it "
                     "inside a FullParameters scope.");
        });
  }
}

bool ParameterGroup::a_rank_owns_nothing() const {
  for (int64_t rank = 0; rank < layout_.world_size(); ++rank) {
    int64_t numel = 0;
    for (size_t i = 0; i < size(); ++i) numel += layout_.piece(i, rank).numel;
    if (numel == 0) return true;
  }
  return false;
}

void ParameterGroup::allocate_full() {
  if (aliases_master()) {
    void* data = master_->data.data_ptr();
    storage_->set_data_ptr_noswap(at::DataPtr(data, lanes_->device));
    return;
  }
  auto* allocator = c10::GetAllocator(lanes_->device.type());
  storage_->set_data_ptr_noswap(allocator->allocate(storage_->nbytes()));
}

std::vector<GatherCall> ParameterGroup::gather_calls(
    const at::Tensor& full_flat) const {
  std::vector<GatherCall> calls;
  for (const FlatBuffer& buffer : layout_.buffers()) {
    const int64_t part = buffer.shard_numel;
    at::Tensor output = full_flat.narrow(0, buffer.full_offset,
                                         part * layout_.world_size());
    at::Tensor slot = output.narrow(0, layout_rank() * part, part);
    slot.copy_(master_->data.narrow(0, buffer.shard_offset, part),
               /*non_blocking=*/true);
    calls.push_back({output, slot});
  }
  return calls;
}

void ParameterGroup::start_gather(const CallLabel& label) {
  if (state_ != State::sharded || !storage_) return;
  require<InvalidState>(has_values_, [&] {
    return str("unit '", label.unit, "' has no values yet, for it was built on "
               "the meta device (first parameter: '", name(0),
               "'). Call materialize(model), or set all of its parameters "
               "inside a FullParameters scope.");
  });
  Below below;
  check_members();
  adopt_replaced_shards();
  allocate_full();
  gathered_version_ = version();
  state_ = State::gathering;
  if (aliases_master()) return;
  const at::Tensor full_flat = tensor_over(storage_, options_.compute_dtype, 0,
                                           {layout_.full_numel()});
  if (options_.debug == Debug::poison_memory) fill_unset(full_flat);
  // The memory comes from the compute stream: the gather waits for what that
  // stream did with it before, and for the last writes to the master.
  gather_issued_.record(current_stream(lanes_->device));
  gather_issued_.block(lanes_->gather_stream);
  StreamScope scope(lanes_->gather_stream);
  const auto calls = gather_calls(full_flat);
  if (layout_.world_size() > 1) {
    gather_ = lanes_->gather->all_gather(calls, label);
  }
  gather_done_.record(lanes_->gather_stream);
}

void ParameterGroup::finish_gather() {
  if (state_ != State::gathering) return;
  gather_.wait();
  gather_ = {};
  gather_done_.block(current_stream(lanes_->device));
  state_ = State::gathered;
}

void ParameterGroup::reshard() {
  if (state_ == State::sharded) return;
  finish_gather();
  state_ = State::sharded;
  if (!storage_) return;
  Below below;
  if (options_.debug == Debug::poison_memory && !aliases_master()) {
    fill_unset(tensor_over(storage_, options_.compute_dtype, 0,
                              {layout_.full_numel()}));
  }
  storage_->set_data_ptr_noswap(no_memory(lanes_->device));
}

std::vector<at::Tensor> ParameterGroup::whole(Values values,
                                              const CallLabel& label) {
  Below below;
  const at::Tensor flat =
      at::zeros({layout_.full_numel()}, master_->data.options());
  if (values == Values::gathered && has_values_) {
    adopt_replaced_shards();
    const auto calls = gather_calls(flat);
    if (layout_.world_size() > 1) {
      lanes_->gather->all_gather(calls, label).wait();
    }
  } else {
    fill_unset(flat);
  }
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < sizes_.size(); ++i) {
    const auto& place = layout_.parameters()[i];
    tensors.push_back(tensor_over(flat.storage().unsafeGetStorageImpl(),
                                  options_.master_dtype, place.full_offset,
                                  sizes_[i]));
  }
  return tensors;
}

void ParameterGroup::store(const std::vector<at::Tensor>& whole) {
  Below below;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const LocalPiece& piece = pieces_[i];
    if (piece.numel == 0) continue;
    master_->data.narrow(0, piece.shard_offset, piece.numel)
        .copy_(whole[i].narrow(0, piece.first_row, piece.num_rows)
                   .reshape(-1));
  }
  master_->data.unsafeGetTensorImpl()->bump_version();
  has_values_ = true;
}

// Reduce ------------------------------------------------------------------

void ParameterGroup::hold_gradient(size_t i, at::Tensor grad) {
  Below below;
  if (grad.is_sparse()) grad = grad.to_dense();
  if (held_[i].defined()) {
    held_[i] = held_[i] + grad;
    return;
  }
  held_[i] = std::move(grad);
  ++num_held_;
}

void ParameterGroup::settle_held_gradients() {
  Below below;
  for (at::Tensor& grad : held_) {
    if (grad.defined()) grad = grad.to(options_.reduce_dtype);
  }
}

void ParameterGroup::drop_gradients() {
  for (at::Tensor& grad : held_) grad.reset();
  num_held_ = 0;
}

void ParameterGroup::fill_reduce_input(const at::Tensor& input) {
  if (options_.debug == Debug::poison_memory) fill_unset(input);
  const bool all_covered = num_held_ == held_.size() &&
                           parameter_numel(layout_) == layout_.full_numel();
  if (!all_covered) input.zero_();
  std::vector<at::Tensor> to;
  std::vector<at::Tensor> from;
  for (size_t i = 0; i < held_.size(); ++i) {
    if (!held_[i].defined() || held_[i].numel() == 0) continue;
    const auto& place = layout_.parameters()[i];
    to.push_back(
        input.narrow(0, place.full_offset, place.numel).view(sizes_[i]));
    from.push_back(held_[i]);
  }
  if (!to.empty()) at::_foreach_copy_(to, from, /*non_blocking=*/true);
}

void ParameterGroup::start_reduce(const CallLabel& label) {
  Below below;
  const auto options = master_->data.options().dtype(options_.reduce_dtype);
  Reduction reduction;
  reduction.input = at::empty({layout_.full_numel()}, options);
  fill_reduce_input(reduction.input);
  drop_gradients();
  if (options_.reduce_dtype == c10::kHalf) {
    // Half of the division before the sum, so that neither end overflows.
    int64_t before = 1;
    const int64_t ranks = lanes_->size();
    while (ranks % before == 0 && ranks / before > before) before *= 2;
    reduction.input.div_(before);
  }
  StreamEvent ready;
  if (options_.strategy == Strategy::replicate || layout_.world_size() == 1) {
    reduction.output = reduction.input;
  } else {
    reduction.output = new_flat_grad(reduction.input);
  }
  ready.record(current_stream(lanes_->device));
  ready.block(lanes_->reduce_stream);
  {
    StreamScope scope(lanes_->reduce_stream);
    if (layout_.world_size() > 1) {
      std::vector<ReduceCall> calls;
      for (const FlatBuffer& buffer : layout_.buffers()) {
        calls.push_back(
            {reduction.output.narrow(0, buffer.shard_offset,
                                     buffer.shard_numel),
             reduction.input.narrow(0, buffer.full_offset,
                                    buffer.shard_numel *
                                        layout_.world_size())});
      }
      reduction.pending = lanes_->reduce->reduce_scatter(calls, label);
    } else if (lanes_->size() > 1) {
      reduction.pending =
          lanes_->reduce->all_reduce(reduction.output, ReduceOp::sum, label);
    }
    reduction.done.record(lanes_->reduce_stream);
  }
  reductions_.push_back(std::move(reduction));
}

// The result of a reduce-scatter, in the reduce dtype. Gaps between the buffers
// hold zeros.
at::Tensor ParameterGroup::new_flat_grad(const at::Tensor& input) const {
  at::Tensor flat = at::empty({layout_.shard_numel()}, input.options());
  int64_t covered = 0;
  for (const FlatBuffer& buffer : layout_.buffers()) {
    covered += buffer.shard_numel;
  }
  if (covered != layout_.shard_numel()) flat.zero_();
  return flat;
}

void ParameterGroup::divide(const at::Tensor& reduced) const {
  const int64_t ranks = lanes_->size();
  if (ranks == 1) return;
  if (options_.reduce_dtype != c10::kHalf) {
    reduced.div_(ranks);
    return;
  }
  int64_t before = 1;
  while (ranks % before == 0 && ranks / before > before) before *= 2;
  reduced.div_(static_cast<double>(ranks) / static_cast<double>(before));
}

void ParameterGroup::finish_reduce(const std::vector<bool>& had_gradient) {
  for (Reduction& reduction : std::exchange(reductions_, {})) {
    reduction.pending.wait();
    reduction.done.block(current_stream(lanes_->device));
    give_gradients(reduction.output, had_gradient);
    run_shard_hooks(had_gradient);
  }
}

void ParameterGroup::give_gradients(const at::Tensor& output,
                                    const std::vector<bool>& had_gradient) {
  const at::Tensor reduced = [&] {
    Below below;
    divide(output);
    return output.to(options_.master_dtype);
  }();
  run_shard_pre_hooks(reduced, had_gradient);
  Below below;
  at::Tensor flat = master_->grad();
  if (flat.defined()) {
    add_to_flat_grad(flat, reduced);
  } else {
    flat = take_as_flat_grad(reduced);
  }
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (had_gradient[i] && trainable(i)) give_gradient(i, flat, reduced);
  }
}

// What `register_hook` set on a shard, which is not in the autograd graph: sees
// this rank's part of the reduced gradient (a copy, guarded like the shard) and
// may replace it.
void ParameterGroup::run_shard_pre_hooks(
    const at::Tensor& reduced, const std::vector<bool>& had_gradient) {
  for (size_t i = 0; i < shards_.size(); ++i) {
    auto& hooks = torch::autograd::impl::hooks(shards_[i]);
    if (hooks.empty() || !had_gradient[i] || !trainable(i)) continue;
    const at::Tensor piece =
        reduced.narrow(0, pieces_[i].shard_offset, pieces_[i].numel)
            .view(shard_sizes(pieces_[i], sizes_[i]));
    std::vector<at::Tensor> grads = {guarded_copy(i, piece)};
    for (const auto& hook : hooks) grads = (*hook)(grads);
    Below below;
    piece.copy_(grads[0]);
  }
}

at::Tensor ParameterGroup::guarded_copy(size_t i,
                                        const at::Tensor& piece) const {
  Below below;
  auto guard = std::make_shared<ShardGuard>("gradient of the shard");
  guard->set_names({{0, piece.numel(), name(i)}});
  auto* allocator = c10::GetAllocator(lanes_->device.type());
  auto storage = c10::make_intrusive<GatedStorage>(
      piece.nbytes(), allocator->allocate(piece.nbytes()), allocator, nullptr,
      guard);
  at::Tensor copy =
      tensor_over(storage.get(), piece.scalar_type(), 0, piece.sizes());
  copy.copy_(piece);
  add_gate_key(copy);
  return copy;
}

// Shards are not in the autograd graph: their post-accumulate hooks (an
// optimizer in backward, say) are run by hand, as FSDP2 does.
void ParameterGroup::run_shard_hooks(const std::vector<bool>& had_gradient) {
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (!had_gradient[i] || !trainable(i)) continue;
    if (auto& hook = torch::autograd::impl::post_acc_grad_hooks(shards_[i])) {
      (*hook)(shards_[i]);
    }
  }
}

// The output becomes the flat gradient as it is, under the gate. `reduced` and
// the result share the memory afterwards.
at::Tensor ParameterGroup::take_as_flat_grad(const at::Tensor& reduced) {
  auto* old = reduced.storage().unsafeGetStorageImpl();
  auto storage = c10::make_intrusive<GatedStorage>(
      old->nbytes(), old->set_data_ptr(no_memory(lanes_->device)),
      old->allocator(), nullptr, grad_guard_);
  old->set_data_ptr_noswap(
      at::DataPtr(storage->mutable_data(), lanes_->device));
  const at::Tensor flat = tensor_over(storage.get(), options_.master_dtype, 0,
                                      {layout_.shard_numel()});
  master_->set_grad(flat);
  return flat;
}

// A shard whose gradient was taken away or replaced since has stale numbers in
// its piece.
void ParameterGroup::add_to_flat_grad(const at::Tensor& flat,
                                      const at::Tensor& reduced) {
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (grad_in_place(i, flat) || pieces_[i].numel == 0) continue;
    flat.narrow(0, pieces_[i].shard_offset, pieces_[i].numel).zero_();
  }
  flat.add_(reduced);
}

bool ParameterGroup::grad_in_place(size_t i, const at::Tensor& flat) const {
  const at::Tensor& grad = shards_[i].grad();
  return grad.defined() && grad.has_storage() &&
         grad.storage().unsafeGetStorageImpl() ==
             flat.storage().unsafeGetStorageImpl();
}

// Gradients are made below autograd: Optimizer::zero_grad detaches them in
// place, which autograd refuses on views.
void ParameterGroup::give_gradient(size_t i, const at::Tensor& flat,
                                   const at::Tensor& reduced) {
  const at::Tensor& shard = shards_[i];
  at::Tensor& grad = shard.mutable_grad();
  const auto sizes = shard_sizes(pieces_[i], sizes_[i]);
  if (!grad.defined()) {
    grad = tensor_over(flat.storage().unsafeGetStorageImpl(),
                       options_.master_dtype, pieces_[i].shard_offset, sizes);
    add_gate_key(grad);
  } else if (!grad_in_place(i, flat)) {
    local(grad).add_(
        reduced.narrow(0, pieces_[i].shard_offset, pieces_[i].numel)
            .view(sizes));
  }
}

void ParameterGroup::free_reduce_inputs() {
  if (lanes_->device.is_cpu()) return;
  for (Reduction& reduction : reductions_) {
    if (!reduction.input.defined()) continue;
    // The compute stream may hand the memory out again from here on.
    reduction.done.block(current_stream(lanes_->device));
    reduction.input.reset();
  }
}

void ParameterGroup::abandon_reduce() noexcept {
  // Completed, so that peers are not left waiting, then dropped.
  for (Reduction& reduction : std::exchange(reductions_, {})) {
    try {
      reduction.pending.wait();
    } catch (const std::exception&) {
    }
  }
  drop_gradients();
}

}  // namespace tessera
