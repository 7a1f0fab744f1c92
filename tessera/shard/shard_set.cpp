#include "tessera/shard/shard_set.h"

#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/module/gate.h"
#include "tessera/module/meta_memory.h"
#include "tessera/shard/below.h"
#include "tessera/tensor/shard_tensor.h"

namespace tessera {
namespace {

Box box_of(const LocalPiece& piece, const std::vector<int64_t>& sizes,
           int64_t dim) {
  Box box{std::vector<int64_t>(sizes.size(), 0), sizes};
  box.offsets[dim] = piece.first_row;
  box.lengths[dim] = piece.num_rows;
  return box;
}

}  // namespace

ShardSet::ShardSet(const std::vector<FoundParameter>& parameters,
                   std::shared_ptr<const GroupPlan> plan)
    : plan_(std::move(plan)) {
  make_master(parameters);
  make_shards(parameters);
}

void ShardSet::make_master(const std::vector<FoundParameter>& parameters) {
  torch::NoGradGuard no_grad;
  GateOff off;
  auto* allocator = plan_->master_allocator();
  const size_t bytes = plan_->layout.shard_numel() *
                       c10::elementSize(plan_->options.master_dtype);
  guard_ = std::make_shared<ShardGuard>("shard");
  grad_guard_ = std::make_shared<ShardGuard>("gradient of the shard");
  auto storage = c10::make_intrusive<GatedStorage>(
      bytes, allocator->allocate(bytes), allocator, nullptr, guard_);
  master_ = std::make_shared<FlatMaster>();
  master_->data = tensor_over(storage.get(), plan_->options.master_dtype, 0,
                              {plan_->layout.shard_numel()});
  master_->data.zero_();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& value = parameters[i].tensor;
    const LocalPiece& piece = plan_->pieces[i];
    if (value.is_meta()) has_values_ = false;
    if (value.is_meta() || piece.numel == 0) continue;
    master_->data.narrow(0, piece.shard_offset, piece.numel)
        .copy_(plan_->rows_first(i, value.detach())
                   .narrow(0, piece.first_row, piece.num_rows)
                   .reshape(-1));
  }
}

void ShardSet::make_shards(const std::vector<FoundParameter>& parameters) {
  std::vector<ShardGuard::Named> names;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const LocalPiece& piece = plan_->pieces[i];
    auto spread = std::make_shared<Spread>();
    spread->name = parameters[i].name;
    spread->global_sizes = plan_->sizes[i];
    if (piece.numel > 0)
      spread->boxes.push_back(box_of(piece, plan_->sizes[i], plan_->dims[i]));
    spread->strides = plan_->shard_strides(i);
    spread->piece = {piece.shard_offset, piece.numel};
    spread->master = master_;
    if (plan_->options.strategy == Strategy::shard) {
      spread->communicator = plan_->lanes->norm;
    }
    spread->holders = plan_->lanes->control;
    if (piece.numel > 0) master_->pieces.push_back(spread->piece);
    names.push_back({piece.shard_offset, piece.numel, spread->name});
    spreads_.push_back(spread);
    shards_.push_back(make_shard(spread, plan_->shard_sizes(i)));
  }
  std::sort(master_->pieces.begin(), master_->pieces.end(),
            [](const auto& a, const auto& b) { return a.offset < b.offset; });
  guard_->set_names(names);
  grad_guard_->set_names(std::move(names));
}

void ShardSet::rename(size_t i, const std::string& name) {
  spreads_[i]->name = name;
  std::vector<ShardGuard::Named> names;
  for (const auto& spread : spreads_) {
    names.push_back({spread->piece.offset, spread->piece.numel, spread->name});
  }
  guard_->set_names(names);
  grad_guard_->set_names(std::move(names));
}

uint32_t ShardSet::version() const {
  return master_->data.unsafeGetTensorImpl()
      ->version_counter()
      .current_version();
}

// torch::load and others give a shard another storage below set_data: its
// values are taken over, or it is an error.
void ShardSet::adopt_replaced() {
  for (size_t i = 0; i < shards_.size(); ++i) {
    auto* impl = shard_impl_of(shards_[i]);
    const auto* home = master_->data.storage().unsafeGetStorageImpl();
    if (impl->unsafe_storage().unsafeGetStorageImpl() == home) continue;
    const at::Tensor given = shards_[i].detach();
    require<InvalidState>(
        given.numel() == plan_->pieces[i].numel &&
            given.scalar_type() == plan_->options.master_dtype,
        [&] {
          return str("parameter '", name(i), "' was given data of shape ",
                     given.sizes(), " ", given.dtype().name(),
                     ", but this rank's shard has ", plan_->pieces[i].numel,
                     " ", plan_->options.master_dtype,
                     " elements. Load whole parameters inside a FullParameters "
                     "scope.");
        });
    master_->data
        .narrow(0, plan_->pieces[i].shard_offset, plan_->pieces[i].numel)
        .copy_(plan_->rows_first(i, given.reshape(plan_->shard_sizes(i)))
                   .reshape(-1));
    restore_shard(*impl, plan_->shard_sizes(i));
    master_->data.unsafeGetTensorImpl()->bump_version();
  }
}

void ShardSet::store(const std::vector<at::Tensor>& whole) {
  Below below;
  for (size_t i = 0; i < plan_->pieces.size(); ++i) {
    const LocalPiece& piece = plan_->pieces[i];
    if (piece.numel == 0) continue;
    master_->data.narrow(0, piece.shard_offset, piece.numel)
        .copy_(plan_->rows_first(i, whole[i])
                   .narrow(0, piece.first_row, piece.num_rows)
                   .reshape(-1));
  }
  master_->data.unsafeGetTensorImpl()->bump_version();
  has_values_ = true;
}

}  // namespace tessera
