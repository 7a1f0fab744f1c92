// The file `.metadata`: which tensors and values a checkpoint holds, in which
// boxes, and where each lies.
//
//   model.weight  float32 [5, 3]   box (0,0)+[3,3] -> __0_0.distcp @0, 12345
//                                  box (3,0)+[2,3] -> __1_0.distcp @0, 12345
//   step                           -> __0_0.distcp @16384, 1261
//
// In the file it is a pickle of Python objects (see docs/checkpoints.md).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/state/path.h"
#include "tessera/tensor/box.h"

namespace tessera::checkpoint {

inline constexpr std::string_view kMetadataName = ".metadata";

/// Where an item lies.
struct ItemPlace {
  std::string file = {};  // a plain name; "" for an empty box that nobody wrote
  uint64_t offset = 0;
  uint64_t num_bytes = 0;
  std::vector<std::string> transforms = {};  // of the bytes; none of ours

  bool operator==(const ItemPlace&) const = default;
};

struct StoredBox {
  Box box;
  ItemPlace place = {};

  bool operator==(const StoredBox&) const = default;
};

struct StoredTensor {
  Dtype dtype = Dtype::float32;
  std::vector<int64_t> sizes = {};
  std::vector<StoredBox> boxes = {};

  bool operator==(const StoredTensor&) const = default;
};

struct Metadata {
  std::map<std::string, StoredTensor> tensors = {};
  std::map<std::string, ItemPlace> values = {};
  std::map<std::string, Path> paths = {};  // of keys of both kinds

  bool operator==(const Metadata&) const = default;
};

/// Reads a `.metadata` of any torch version, and checks what it says: plain
/// file names, boxes inside their tensors, an item for each box that is not
/// empty. `path` is for messages. Errors: CheckpointError.
[[nodiscard]] Metadata parse_metadata(std::string_view bytes,
                                      const std::string& path);

/// `checkpoint_id` and `save_id` stand in it for people; nobody checks them.
[[nodiscard]] std::string write_metadata(const Metadata& metadata,
                                         const std::string& checkpoint_id,
                                         const std::string& save_id);

}  // namespace tessera::checkpoint
