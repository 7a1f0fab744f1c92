#include "tessera/checkpoint/region.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

// Rows that lie apart are read together up to this size, gaps included, unless
// a gap is so wide that a read of its own for each row costs less.
constexpr uint64_t kMostSlab = 8 << 20;
constexpr uint64_t kMostGap = 32 << 10;

std::string show(const std::vector<int64_t>& numbers) {
  std::string out = "[";
  for (const int64_t number : numbers) {
    out += (out.size() > 1 ? ", " : "") + str(number);
  }
  return out + "]";
}

std::string show(const Box& box) {
  return str("offset ", show(box.offsets), " size ", show(box.lengths));
}

size_t sign_bytes_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::float64:
    case Dtype::complex128:
      return 8;
    case Dtype::float32:
    case Dtype::complex64:
      return 4;
    case Dtype::float16:
    case Dtype::bfloat16:
    case Dtype::complex32:
      return 2;
    default:
      return 0;
  }
}

}  // namespace

std::optional<Box> intersection(const Box& a, const Box& b) {
  Box shared;
  for (size_t dim = 0; dim < a.offsets.size(); ++dim) {
    const int64_t begin = std::max(a.offsets[dim], b.offsets[dim]);
    const int64_t end = std::min(a.offsets[dim] + a.lengths[dim],
                                 b.offsets[dim] + b.lengths[dim]);
    if (end <= begin) return std::nullopt;
    shared.offsets.push_back(begin);
    shared.lengths.push_back(end - begin);
  }
  return shared;
}

Box whole_box(const std::vector<int64_t>& sizes) {
  return {std::vector<int64_t>(sizes.size(), 0), sizes};
}

std::optional<std::pair<size_t, size_t>> find_shared(
    const std::vector<Box>& boxes) {
  std::vector<size_t> order(boxes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto begin = [&](size_t i) {
    return boxes[i].offsets.empty() ? 0 : boxes[i].offsets[0];
  };
  std::ranges::stable_sort(order, {}, begin);
  for (size_t a = 0; a < order.size(); ++a) {
    const Box& first = boxes[order[a]];
    if (first.numel() == 0) continue;
    for (size_t b = a + 1; b < order.size(); ++b) {
      const Box& second = boxes[order[b]];
      if (!first.offsets.empty() &&
          second.offsets[0] >= first.offsets[0] + first.lengths[0]) {
        break;
      }
      if (second.numel() > 0 && intersection(first, second)) {
        return std::pair{order[a], order[b]};
      }
    }
  }
  return std::nullopt;
}

std::vector<Overlap> find_overlaps(const std::vector<StoredBox>& stored,
                                   const Box& wanted, const std::string& key) {
  std::vector<Overlap> overlaps;
  std::vector<Box> parts;
  int64_t covered = 0;
  if (wanted.numel() == 0) return overlaps;
  for (size_t i = 0; i < stored.size(); ++i) {
    const auto shared = intersection(stored[i].box, wanted);
    if (!shared) continue;
    const bool again = std::ranges::any_of(overlaps, [&](const Overlap& other) {
      return stored[other.stored].box == stored[i].box;
    });
    if (again) continue;
    overlaps.push_back({i, *shared});
    parts.push_back(*shared);
    covered += shared->numel();
  }
  if (const auto twice = find_shared(parts)) {
    throw CheckpointError(
        str("checkpoint: '", key, "' is stored in boxes that overlap: ",
            show(stored[overlaps[twice->first].stored].box), " and ",
            show(stored[overlaps[twice->second].stored].box),
            "; which of them holds is unknown."));
  }
  require<CheckpointError>(covered == wanted.numel(), [&] {
    return str("checkpoint: '", key, "' is not stored completely: of the ",
               wanted.numel(), " elements at ", show(wanted), " it has ",
               covered, ".");
  });
  return overlaps;
}

RegionCopy::RegionCopy(const ItemTensor& item, const Box& stored,
                       const Box& wanted, const Box& part)
    : width_(static_cast<uint64_t>(row_of(item.dtype).num_bytes)),
      conjugate_(item.conjugate),
      negative_(item.negative) {
  const std::vector<int64_t> target_strides = row_major_strides(wanted.lengths);
  item_begin_ = static_cast<uint64_t>(item.storage_offset) * width_;
  for (size_t dim = 0; dim < part.lengths.size(); ++dim) {
    const auto from =
        static_cast<uint64_t>(part.offsets[dim] - stored.offsets[dim]);
    const auto to =
        static_cast<uint64_t>(part.offsets[dim] - wanted.offsets[dim]);
    lengths_.push_back(static_cast<uint64_t>(part.lengths[dim]));
    item_steps_.push_back(static_cast<uint64_t>(item.strides[dim]) * width_);
    target_steps_.push_back(static_cast<uint64_t>(target_strides[dim]) *
                            width_);
    item_begin_ += from * item_steps_[dim];
    target_begin_ += to * target_steps_[dim];
  }
  if (conjugate_ || negative_) {
    sign_bytes_ = sign_bytes_of(item.dtype);
    require<Unsupported>(sign_bytes_ > 0, [&] {
      return str("checkpoint: a negated or conjugated tensor of ",
                 row_of(item.dtype).name, " is not read.");
    });
  }
}

// Bytes from the first to the last element of one index range, in the item.
uint64_t RegionCopy::span_bytes(size_t dim) const {
  uint64_t bytes = width_;
  for (size_t d = dim; d < lengths_.size(); ++d) {
    bytes += (lengths_[d] - 1) * item_steps_[d];
  }
  return bytes;
}

// Whether one read for all indices of `dim` and one for each cost about the
// same, or less: the dim is not the item's slowest, or its rows are near.
bool RegionCopy::read_together(size_t dim) const {
  if (span_bytes(dim) > kMostSlab) return false;
  const uint64_t step = item_steps_[dim];
  for (size_t d = dim + 1; d < lengths_.size(); ++d) {
    if (lengths_[d] > 1 && item_steps_[d] > step) return true;
  }
  return step <= span_bytes(dim + 1) + kMostGap;
}

bool RegionCopy::dense_from(size_t dim) const {
  uint64_t expected = width_;
  for (size_t d = lengths_.size(); d-- > dim;) {
    if (lengths_[d] == 1) continue;
    if (item_steps_[d] != expected || target_steps_[d] != expected)
      return false;
    expected *= lengths_[d];
  }
  return true;
}

void RegionCopy::run(const Read& read, std::span<std::byte> target) const {
  copy(read, target, 0, item_begin_, target_begin_);
  if (sign_bytes_ > 0) fix_signs(target, 0, target_begin_);
}

void RegionCopy::copy(const Read& read, std::span<std::byte> target, size_t dim,
                      uint64_t from, uint64_t to) const {
  const uint64_t bytes = span_bytes(dim);
  if (dense_from(dim)) {
    read(from, target.subspan(to, bytes));
    return;
  }
  if (dim + 1 == lengths_.size() || read_together(dim)) {
    std::vector<std::byte> slab(bytes);
    read(from, slab);
    scatter(slab, target, dim, 0, to);
    return;
  }
  for (uint64_t i = 0; i < lengths_[dim]; ++i) {
    copy(read, target, dim + 1, from + i * item_steps_[dim],
         to + i * target_steps_[dim]);
  }
}

void RegionCopy::scatter(std::span<const std::byte> slab,
                         std::span<std::byte> target, size_t dim, uint64_t from,
                         uint64_t to) const {
  if (dense_from(dim)) {
    const uint64_t bytes = span_bytes(dim);
    std::memcpy(target.subspan(to, bytes).data(), slab.data() + from, bytes);
    return;
  }
  for (uint64_t i = 0; i < lengths_[dim]; ++i) {
    scatter(slab, target, dim + 1, from + i * item_steps_[dim],
            to + i * target_steps_[dim]);
  }
}

void RegionCopy::fix_signs(std::span<std::byte> target, size_t dim,
                           uint64_t to) const {
  if (dim < lengths_.size()) {
    for (uint64_t i = 0; i < lengths_[dim]; ++i) {
      fix_signs(target, dim + 1, to + i * target_steps_[dim]);
    }
    return;
  }
  const size_t parts = width_ / sign_bytes_;  // 2 for complex numbers
  for (size_t part = 0; part < parts; ++part) {
    const bool flip = negative_ != (conjugate_ && part == 1);
    if (flip) target[to + (part + 1) * sign_bytes_ - 1] ^= std::byte{0x80};
  }
}

}  // namespace tessera::checkpoint
