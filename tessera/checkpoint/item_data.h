// The bytes of an item's tensor.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "tessera/checkpoint/item.h"
#include "tessera/tensor/box.h"

namespace tessera::checkpoint {

/// Boxes of one tensor: the one that the item holds, the one that is wanted,
/// and what they share.
struct ReadBoxes {
  const Box& stored;
  const Box& wanted;
  const Box& part;
};

/// Fills `into`, which are the bytes of the wanted box, row-major, where `part`
/// lies. What is read whole is compared with its checksum.
/// Errors: CheckpointError, which names `key`.
void read_item_box(const FileSlice& slice, const ItemTensor& item,
                   const ReadBoxes& boxes, std::span<std::byte> into,
                   const std::string& key);

}  // namespace tessera::checkpoint
