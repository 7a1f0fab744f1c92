// Who writes what. Pure: every rank makes the same plan from all ranks' offers.
//
//   rank 0 offers  w box (0,0)+[3,3], bias, epoch = 3
//   rank 1 offers  w box (3,0)+[2,3], bias, epoch = 3
//   plan           rank 0: w box 0, epoch; rank 1: w box 1, bias
//
// A box that several ranks hold is written by one of them, the one with the
// least to write so far.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/metadata.h"

namespace tessera::checkpoint {

/// A tensor of which a rank holds some boxes, possibly none.
struct OfferedTensor {
  std::string key = {};
  Path path = {};
  Dtype dtype = Dtype::float32;
  std::vector<int64_t> sizes = {};
  std::vector<Box> boxes = {};

  bool operator==(const OfferedTensor&) const = default;
};

/// A value; equal on all ranks that offer it.
struct OfferedValue {
  std::string key = {};
  Path path = {};
  std::string shown = {};   // short, for messages
  std::string digest = {};  // equal for equal values

  bool operator==(const OfferedValue&) const = default;
};

struct Offer {
  std::vector<OfferedTensor> tensors = {};
  std::vector<OfferedValue> values = {};

  bool operator==(const Offer&) const = default;
};

[[nodiscard]] std::string encode_offer(const Offer& offer);
/// Errors: CheckpointError for bytes that `encode_offer` did not make.
[[nodiscard]] Offer decode_offer(std::string_view bytes);

/// One thing that a rank writes.
struct WriteItem {
  std::string key = {};
  bool is_value = false;
  size_t box = 0;  // of metadata.tensors[key].boxes
};

struct SavePlan {
  Metadata metadata = {};  // without places
  std::vector<std::vector<WriteItem>> of_rank = {};
};

/// Errors: InvalidArgument, naming key and ranks, for one key offered twice by
///         a rank, with another dtype, size or kind by another rank, a value
///         that differs between ranks, boxes outside of their tensor or that
///         overlap without being equal, and tensors that the boxes of all ranks
///         do not cover.
[[nodiscard]] SavePlan plan_save(const std::vector<Offer>& offers);

/// Where a rank has put what it wrote.
struct WrittenItem {
  WriteItem item = {};
  ItemPlace place = {};
};
[[nodiscard]] std::string encode_written(const std::vector<WrittenItem>& items);
[[nodiscard]] std::vector<WrittenItem> decode_written(std::string_view bytes);

}  // namespace tessera::checkpoint
