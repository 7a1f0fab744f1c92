#include "tessera/checkpoint/item_data.h"

#include "tessera/base/error.h"
#include "tessera/checkpoint/crc32.h"
#include "tessera/checkpoint/region.h"

namespace tessera::checkpoint {

void read_item_box(const FileSlice& slice, const ItemTensor& item,
                   const ReadBoxes& boxes, std::span<std::byte> into,
                   const std::string& key) {
  const RegionCopy copy(item, boxes.stored, boxes.wanted, boxes.part);
  const auto read = [&](uint64_t position, std::span<std::byte> part) {
    slice.read(item.data_begin + position, part);
    if (!copy.reads_everything() || !item.data_crc) return;
    require<CheckpointError>(crc32(part) == *item.data_crc, [&] {
      return str("'", key, "': the data of ", slice.name(),
                 " does not fit its checksum: it is damaged.");
    });
  };
  copy.run(read, into);
}

}  // namespace tessera::checkpoint
