// A box of a stored tensor, read in parts by several threads.
//
//   BoxReads reads(reader, "model.weight", box);
//   parallel_for(reads.num_parts(), 4, [&](size_t part) {
//     reads.read(part, box, bytes);
//   });
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/item_data.h"
#include "tessera/checkpoint/reader.h"

namespace tessera::checkpoint {

/// Threads may read parts in any order, each once. The reader outlives it.
class BoxReads {
 public:
  /// Reads what stands around the data of the items that `wanted` needs.
  /// Errors: CheckpointError for holes, damage, and items that are not what
  ///         `.metadata` says.
  BoxReads(const CheckpointReader& reader, std::string key, const Box& wanted);

  [[nodiscard]] size_t num_parts() const { return parts_.size(); }
  /// A part of the wanted box, of at most kMostPart bytes.
  [[nodiscard]] const Box& box(size_t part) const;

  /// Fills `into`, which are the bytes of `target`, row-major, in the stored
  /// dtype, where the part lies. Errors: CheckpointError for damage.
  void read(size_t part, const Box& target, std::span<std::byte> into);

 private:
  const CheckpointReader& reader_;
  std::string key_;
  std::vector<ItemPlace> places_;
  std::vector<ItemReads> items_;
  std::vector<std::pair<size_t, size_t>> parts_;  // item, and its part
};

}  // namespace tessera::checkpoint
