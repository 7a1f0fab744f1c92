// Shards made by hand, without fully_shard: one flat master for one rank.
//
// Full tensors are cut by rows as evenly as goes, later ranks getting fewer or
// none. Behind every second piece lies a gap, and behind the last some padding.
#pragma once

#include <torch/torch.h>

#include <cstring>
#include <memory>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/module/gate.h"
#include "tessera/tensor/shard_tensor.h"
#include "tessera/tensor/spread.h"

namespace tessera::testing {

struct Cut {
  int rank = 0;
  int num_ranks = 1;
  std::shared_ptr<Communicator> communicator = nullptr;
  int64_t gap = 3;
};

class TestShards {
 public:
  explicit TestShards(const std::vector<at::Tensor>& full, Cut cut = {})
      : cut_(std::move(cut)), master_(std::make_shared<FlatMaster>()) {
    install_gate();
    int64_t offset = 0;
    std::vector<Spread> spreads;
    for (size_t i = 0; i < full.size(); ++i) {
      const int64_t numel = part_of(full[i]).numel();
      Spread& spread = spreads.emplace_back();
      spread.name = "p" + std::to_string(i);
      spread.global_sizes = full[i].sizes().vec();
      spread.piece = {numel ? offset : 0, numel};
      spread.master = master_;
      spread.communicator = cut_.communicator;
      if (numel) master_->pieces.push_back({offset, numel});
      offset += numel + (i % 2 ? cut_.gap : 0);
    }
    numel_ = offset + 5;
    dtype_ = full.empty() ? at::kFloat : full[0].scalar_type();
    master_->data = flat_zeros("shard");
    for (size_t i = 0; i < full.size(); ++i) {
      at::Tensor part = part_of(full[i]);
      shards_.push_back(
          make_shard(std::make_shared<Spread>(spreads[i]), part.sizes()));
      shards_.back().set_requires_grad(true);
      torch::NoGradGuard no_grad;
      local(shards_.back()).copy_(part);
    }
  }

  const std::vector<at::Tensor>& shards() const { return shards_; }
  const std::shared_ptr<FlatMaster>& master() const { return master_; }

  /// This rank's rows of `full`.
  at::Tensor part_of(const at::Tensor& full) const {
    const int64_t rows = full.size(0);
    const int64_t chunk = (rows + cut_.num_ranks - 1) / cut_.num_ranks;
    const int64_t begin = std::min(rows, chunk * cut_.rank);
    return full.slice(0, begin, std::min(rows, begin + chunk));
  }

  /// Hands out pieces of one new flat gradient, as a reduction does; undefined
  /// entries stand for parameters without gradient.
  void set_gradients(const std::vector<at::Tensor>& full_gradients) {
    torch::NoGradGuard no_grad;
    at::Tensor flat = flat_zeros("gradient of the shard");
    for (size_t i = 0; i < shards_.size(); ++i) {
      if (!full_gradients[i].defined()) {
        shards_[i].mutable_grad().reset();
        continue;
      }
      at::Tensor gradient =
          tensor_over(flat.storage().unsafeGetStorageImpl(), dtype_,
                      spread_of(shards_[i])->piece.offset, shards_[i].sizes());
      gradient.copy_(part_of(full_gradients[i]));
      add_gate_key(gradient);
      shards_[i].mutable_grad() = gradient;
    }
    master_->set_grad(flat);
  }

 private:
  at::Tensor flat_zeros(const char* what) const {
    const size_t num_bytes = numel_ * c10::elementSize(dtype_);
    c10::Allocator* allocator = c10::GetAllocator(c10::kCPU);
    at::DataPtr data = allocator->allocate(num_bytes);
    std::memset(data.get(), 0, num_bytes);
    auto storage = c10::make_intrusive<GatedStorage>(
        num_bytes, std::move(data), allocator, nullptr,
        std::make_shared<ShardGuard>(what));
    return tensor_over(storage.get(), dtype_, 0, {numel_});
  }

  Cut cut_;
  std::shared_ptr<FlatMaster> master_;
  std::vector<at::Tensor> shards_;
  int64_t numel_ = 0;
  c10::ScalarType dtype_ = c10::kFloat;
};

}  // namespace tessera::testing
