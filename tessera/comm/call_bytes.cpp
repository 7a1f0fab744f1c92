#include "tessera/comm/call_bytes.h"

namespace tessera {

int64_t size_of(c10::ScalarType type) {
  return static_cast<int64_t>(c10::elementSize(type));
}

std::vector<int64_t> part_bytes(std::span<const GatherCall> calls) {
  std::vector<int64_t> bytes;
  for (const GatherCall& call : calls) {
    bytes.push_back(call.input.numel() * size_of(call.output.scalar_type()));
  }
  return bytes;
}
std::vector<int64_t> part_bytes(std::span<const PiecewiseReduceCall> calls) {
  std::vector<int64_t> bytes;
  for (const PiecewiseReduceCall& call : calls) {
    bytes.push_back(call.output.numel() * size_of(call.dtype));
  }
  return bytes;
}

std::vector<ByteRange> ranges_of(const PiecewiseReduceCall& call) {
  std::vector<ByteRange> ranges;
  for (const InputPiece& piece : call.pieces) {
    ranges.push_back({.begin = piece.offset * size_of(call.dtype),
                      .bytes = static_cast<int64_t>(piece.values.nbytes())});
  }
  return ranges;
}

}  // namespace tessera
