#include "tessera/checkpoint/box_reads.h"

namespace tessera::checkpoint {

BoxReads::BoxReads(const CheckpointReader& reader, std::string key,
                   const Box& wanted)
    : reader_(reader), key_(std::move(key)) {
  const StoredTensor& tensor = reader.metadata().tensors.at(key_);
  for (const Overlap& overlap : find_overlaps(tensor.boxes, wanted, key_)) {
    const StoredBox& stored = tensor.boxes[overlap.stored];
    places_.push_back(stored.place);
    items_.emplace_back(reader.read_item(key_, stored), stored.box,
                        overlap.box);
    for (size_t part = 0; part < items_.back().parts().size(); ++part) {
      parts_.emplace_back(items_.size() - 1, part);
    }
  }
}

const Box& BoxReads::box(size_t part) const {
  const auto [item, index] = parts_[part];
  return items_[item].parts()[index];
}

void BoxReads::read(size_t part, const Box& target, std::span<std::byte> into) {
  const auto [item, index] = parts_[part];
  const FileSlice slice = reader_.slice_of(key_, places_[item]);
  items_[item].read(slice, index, target, into, key_);
}

}  // namespace tessera::checkpoint
