// Which stored boxes a wanted box needs, and copying between them. Pure.
//
//   wanted      +--------+        stored   +-----+-----+
//               |  :     |                 |  0  |  1  |
//               +--:-----+                 +-----+-----+
//   overlaps    |0 :  1  |
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/checkpoint/item.h"
#include "tessera/checkpoint/metadata.h"
#include "tessera/tensor/box.h"

namespace tessera::checkpoint {

/// What two boxes share, or none for nothing.
[[nodiscard]] std::optional<Box> intersection(const Box& a, const Box& b);

/// The box of a whole tensor.
[[nodiscard]] Box whole_box(const std::vector<int64_t>& sizes);

/// A part of a wanted box, and the stored box that holds it.
struct Overlap {
  size_t stored = 0;
  Box box;
};

/// Errors: CheckpointError when stored boxes do not cover all of `wanted`, or
///         cover some of it twice by different boxes. `key` is for messages.
[[nodiscard]] std::vector<Overlap> find_overlaps(
    const std::vector<StoredBox>& stored, const Box& wanted,
    const std::string& key);

/// Two of `boxes` that share an element, if there are.
[[nodiscard]] std::optional<std::pair<size_t, size_t>> find_shared(
    const std::vector<Box>& boxes);

/// A box cut out of an item and put into a row-major target box: one step for
/// each range of bytes that is contiguous on both sides, or near enough.
class RegionCopy {
 public:
  /// `wanted` lies row-major in the target; `stored` is the item's box; `part`
  /// lies in both.
  RegionCopy(const ItemTensor& item, const Box& stored, const Box& wanted,
             const Box& part);

  /// Reads `into.size()` bytes at a position in the item's data.
  using Read =
      std::function<void(uint64_t position, std::span<std::byte> into)>;

  /// Fills `target` (all bytes of the wanted box) where `part` lies. Reads
  /// nothing outside of the part but gaps of up to 32 KiB between its rows.
  /// Positions rise from read to read in a row-major item.
  void run(const Read& read, std::span<std::byte> target) const;

 private:
  [[nodiscard]] uint64_t span_bytes(size_t dim) const;
  [[nodiscard]] bool read_together(size_t dim) const;
  [[nodiscard]] bool dense_from(size_t dim) const;
  void copy(const Read& read, std::span<std::byte> target, size_t dim,
            uint64_t from, uint64_t to) const;
  void scatter(std::span<const std::byte> slab, std::span<std::byte> target,
               size_t dim, uint64_t from, uint64_t to) const;
  void fix_signs(std::span<std::byte> target, size_t dim, uint64_t to) const;

  uint64_t width_;         // bytes of an element
  size_t sign_bytes_ = 0;  // of a real number; 0: no sign changes
  bool conjugate_ = false;
  bool negative_ = false;
  std::vector<uint64_t> lengths_;       // of the part
  std::vector<uint64_t> item_steps_;    // bytes
  std::vector<uint64_t> target_steps_;  // bytes
  uint64_t item_begin_ = 0;
  uint64_t target_begin_ = 0;
};

}  // namespace tessera::checkpoint
