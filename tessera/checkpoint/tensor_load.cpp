#include "tessera/checkpoint/tensor_load.h"

#include <ATen/ops/empty.h>

#include "tessera/checkpoint/torch_dtype.h"
#include "tessera/state/box_view.h"

namespace tessera::checkpoint {
namespace {

bool is_plain_memory(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() &&
         !tensor.is_neg();
}

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

// `part` as it lies in `whole`.
Box inside(const Box& part, const Box& whole) {
  Box box = part;
  for (size_t dim = 0; dim < box.offsets.size(); ++dim) {
    box.offsets[dim] -= whole.offsets[dim];
  }
  return box;
}

}  // namespace

TensorLoad::TensorLoad(const CheckpointReader& reader, const std::string& key,
                       const StateTensor& tensor)
    : tensor_(tensor),
      stored_(scalar_type_of(reader.metadata().tensors.at(key).dtype)),
      in_place_(is_plain_memory(tensor.local) &&
                tensor.local.scalar_type() == stored_) {
  for (const Box& box : tensor.boxes) {
    boxes_.emplace_back(reader, key, box);
    for (size_t part = 0; part < boxes_.back().num_parts(); ++part) {
      parts_.emplace_back(boxes_.size() - 1, part);
    }
  }
}

void TensorLoad::read(size_t part) {
  const auto [index, number] = parts_[part];
  BoxReads& reads = boxes_[index];
  const Box& whole = tensor_.boxes[index];
  const Box& box = reads.box(number);
  const at::Tensor target = box_of_part(tensor_.local, tensor_.boxes, index);
  if (in_place_) {
    reads.read(number, whole, bytes_of(target));
    return;
  }
  const at::Tensor staged = at::empty(
      box.lengths,
      at::TensorOptions().dtype(stored_).pinned_memory(target.is_cuda()));
  reads.read(number, box, bytes_of(staged));
  box_of_whole(target, inside(box, whole)).copy_(staged);
}

}  // namespace tessera::checkpoint
