// The bytes of an item's tensor, read in parts of a few MiB.
//
//   needed +--------+     parts +---0----+  each is a box of its own, and
//          |        |           +---1----+  near together in the item, whatever
//          +--------+           +---2----+  its strides
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/checkpoint/item.h"
#include "tessera/tensor/box.h"

namespace tessera::checkpoint {

/// The most bytes that one part has, in its tensor and in the item. Threads
/// read neighbouring parts at once: small ones still look like one sequential
/// read, which the system reads ahead of; with 2 MiB it took a quarter longer,
/// with 8 MiB twice as long.
inline constexpr uint64_t kMostPart = 512 << 10;

/// Threads may read parts in any order, each once.
class ItemReads {
 public:
  /// `needed` lies in `stored`, which is the item's box.
  ItemReads(ItemTensor item, Box stored, const Box& needed);

  [[nodiscard]] const std::vector<Box>& parts() const { return parts_; }

  /// Fills `into`, which are the bytes of `target`, row-major, where the part
  /// lies. Reads nothing else, but for gaps of up to 32 KiB between rows. When
  /// all of the item is needed, the last part compares its checksum.
  /// Errors: CheckpointError, which names `key`.
  void read(const FileSlice& slice, size_t part, const Box& target,
            std::span<std::byte> into, const std::string& key);

 private:
  void check(const FileSlice& slice, const std::string& key) const;

  ItemTensor item_;
  Box stored_;
  std::vector<Box> parts_;
  std::vector<uint32_t> crcs_;  // of the parts; none: there is none to compare
  std::unique_ptr<std::atomic<size_t>> parts_left_;
};

}  // namespace tessera::checkpoint
