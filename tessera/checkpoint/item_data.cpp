#include "tessera/checkpoint/item_data.h"

#include <algorithm>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/checkpoint/crc32.h"
#include "tessera/checkpoint/region.h"

namespace tessera::checkpoint {
namespace {

// Cuts `box` along its slowest dim in the item, until its parts have at most
// `most` elements, and reach over at most so many. Parts of a row-major item
// come in the order of its bytes.
void cut(const Box& box, const std::vector<int64_t>& strides, int64_t most,
         std::vector<Box>& parts) {
  std::optional<size_t> slowest;
  int64_t reach = 1;
  for (size_t dim = 0; dim < strides.size(); ++dim) {
    if (box.lengths[dim] == 1) continue;
    reach += (box.lengths[dim] - 1) * strides[dim];
    if (!slowest || strides[dim] > strides[*slowest]) slowest = dim;
  }
  const int64_t numel = box.numel();
  if (!slowest || std::max(reach, numel) <= most) {
    parts.push_back(box);
    return;
  }
  const int64_t length = box.lengths[*slowest];
  const int64_t stride = std::max<int64_t>(strides[*slowest], 1);
  const int64_t inner = reach - (length - 1) * strides[*slowest];
  const int64_t by_reach = inner > most ? 1 : 1 + (most - inner) / stride;
  const int64_t by_numel = std::max<int64_t>(most / (numel / length), 1);
  const int64_t step = std::min({by_reach, by_numel, length});
  for (int64_t begin = 0; begin < length; begin += step) {
    Box part = box;
    part.offsets[*slowest] += begin;
    part.lengths[*slowest] = std::min(step, length - begin);
    cut(part, strides, most, parts);
  }
}

}  // namespace

ItemReads::ItemReads(ItemTensor item, Box stored, const Box& needed)
    : item_(std::move(item)), stored_(std::move(stored)) {
  if (needed.numel() == 0) return;
  const int64_t width = row_of(item_.dtype).num_bytes;
  cut(needed, item_.strides, static_cast<int64_t>(kMostPart) / width, parts_);
  const bool all_of_it =
      needed == stored_ && item_.is_contiguous() && item_.storage_offset == 0 &&
      item_.data_bytes == static_cast<uint64_t>(needed.numel() * width);
  if (!all_of_it || !item_.data_crc) return;
  crcs_.resize(parts_.size());
  parts_left_ = std::make_unique<std::atomic<size_t>>(parts_.size());
}

void ItemReads::read(const FileSlice& slice, size_t part, const Box& target,
                     std::span<std::byte> into, const std::string& key) {
  uint32_t crc = 0;
  const RegionCopy copy(item_, stored_, target, parts_[part]);
  const auto read = [&](uint64_t position, std::span<std::byte> bytes) {
    slice.read(item_.data_begin + position, bytes);
    if (!crcs_.empty()) crc = crc32(bytes, crc);
  };
  copy.run(read, into);
  if (crcs_.empty()) return;
  crcs_[part] = crc;
  if (--*parts_left_ == 0) check(slice, key);
}

void ItemReads::check(const FileSlice& slice, const std::string& key) const {
  const auto width = static_cast<uint64_t>(row_of(item_.dtype).num_bytes);
  uint32_t crc = 0;
  for (size_t part = 0; part < parts_.size(); ++part) {
    const auto numel = static_cast<uint64_t>(parts_[part].numel());
    crc = crc32_combine(crc, crcs_[part], numel * width);
  }
  require<CheckpointError>(crc == *item_.data_crc, [&] {
    return str("'", key, "': the data of ", slice.name(),
               " does not fit its checksum: it is damaged.");
  });
}

}  // namespace tessera::checkpoint
