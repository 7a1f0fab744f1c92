#include "tessera/state/broadcast_full.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "tessera/comm/communicator.h"
#include "tessera/state/box_view.h"

namespace tessera {
namespace {

constexpr int64_t kSlabBytes = int64_t{64} << 20;

// Rows [begin, begin + count) of a tensor, on every rank.
class Slab {
 public:
  Slab(int64_t begin, at::Tensor rows)
      : begin_(begin), rows_(std::move(rows)) {}

  // Copies what it has of box `index` of `target`.
  void copy_to(const StateTensor& target, size_t index) const {
    const Box& box = target.boxes[index];
    const at::Tensor part = box_of_part(target.local, target.boxes, index);
    if (box.offsets.empty()) {
      part.copy_(rows_);
      return;
    }
    const int64_t end = begin_ + rows_.size(0);
    const int64_t from = std::max(begin_, box.offsets[0]);
    const int64_t to = std::min(end, box.offsets[0] + box.lengths[0]);
    if (from >= to) return;
    Box shared = box;
    shared.offsets[0] = from - begin_;
    shared.lengths[0] = to - from;
    part.narrow(0, from - box.offsets[0], to - from)
        .copy_(box_of_whole(rows_, shared));
  }

 private:
  int64_t begin_;
  at::Tensor rows_;
};

// The rows as every rank has them afterwards; `own` is rank 0's.
at::Tensor send(const StateGroup& group, const at::Tensor& own,
                const std::vector<int64_t>& sizes, c10::ScalarType type) {
  if (!group.communicator) return own;
  const int64_t count = elements_of(sizes);
  const auto width = static_cast<int64_t>(c10::elementSize(type));
  const at::Tensor bytes =
      at::empty({count * width},
                at::TensorOptions().dtype(at::kByte).device(group.device));
  at::Tensor rows = elements_at(bytes, 0, type, count).view(sizes);
  if (own.defined()) rows.copy_(own);
  group.communicator->broadcast(bytes, 0, {.phase = kStatePhase}).wait();
  return rows;
}

}  // namespace

void broadcast_full(const StateGroup& group, const at::Tensor& whole,
                    c10::ScalarType type, const StateTensor& target) {
  const std::vector<int64_t>& sizes = target.sizes;
  if (elements_of(sizes) == 0) return;
  const int64_t rows = sizes.empty() ? 1 : sizes[0];
  const int64_t row_bytes =
      elements_of(sizes) / rows * static_cast<int64_t>(c10::elementSize(type));
  const int64_t step = std::clamp<int64_t>(kSlabBytes / row_bytes, 1, rows);
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t count = std::min(step, rows - begin);
    std::vector<int64_t> slab_sizes = sizes;
    if (!sizes.empty()) slab_sizes[0] = count;
    const at::Tensor own = whole.defined() && !sizes.empty()
                               ? whole.narrow(0, begin, count)
                               : whole;
    const Slab slab(begin, send(group, own, slab_sizes, type));
    for (size_t i = 0; i < target.boxes.size(); ++i) slab.copy_to(target, i);
  }
}

}  // namespace tessera
