#include "tessera/state/box_view.h"

#include <c10/util/accumulate.h>

namespace tessera {
namespace {

constexpr int64_t kAlignment = 16;

}  // namespace

int64_t elements_of(const std::vector<int64_t>& sizes) {
  return c10::multiply_integers(sizes);
}

int64_t elements_of(const std::vector<Box>& boxes) {
  int64_t sum = 0;
  for (const Box& box : boxes) sum += box.numel();
  return sum;
}

int64_t aligned(int64_t num_bytes) {
  return (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

at::Tensor elements_at(const at::Tensor& bytes, int64_t at,
                       c10::ScalarType type, int64_t count) {
  const auto width = static_cast<int64_t>(c10::elementSize(type));
  return bytes.narrow(0, at, count * width).view(type);
}

at::Tensor box_of_whole(const at::Tensor& whole, const Box& box) {
  at::Tensor view = whole;
  for (size_t dim = 0; dim < box.lengths.size(); ++dim) {
    view = view.narrow(static_cast<int64_t>(dim), box.offsets[dim],
                       box.lengths[dim]);
  }
  return view;
}

at::Tensor box_of_part(const at::Tensor& part, const std::vector<Box>& boxes,
                       size_t index) {
  const Box& box = boxes[index];
  if (boxes.size() == 1 && part.sizes() == at::IntArrayRef(box.lengths)) {
    return part;
  }
  int64_t begin = 0;
  for (size_t i = 0; i < index; ++i) begin += boxes[i].numel();
  return part.view(-1).narrow(0, begin, box.numel()).view(box.lengths);
}

}  // namespace tessera
