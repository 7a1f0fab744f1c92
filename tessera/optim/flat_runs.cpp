#include "tessera/optim/flat_runs.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstddef>
#include <tuple>

#include "tessera/base/error.h"

namespace tessera {
namespace {

size_t ordinal_of(const Spread& spread) {
  const auto& pieces = spread.master->pieces;
  auto at = std::lower_bound(pieces.begin(), pieces.end(), spread.piece.offset,
                             [](const FlatPiece& piece, int64_t offset) {
                               return piece.offset < offset;
                             });
  require<InvalidState>(
      at != pieces.end() && at->offset == spread.piece.offset &&
          at->numel == spread.piece.numel,
      [&] {
        return str("The shard of '", spread.name, "' (offset ",
                   spread.piece.offset, ", ", spread.piece.numel,
                   " elements) is not listed in its flat master.");
      });
  return static_cast<size_t>(at - pieces.begin());
}

bool lies_as(const at::Tensor& gradient, const Spread& spread) {
  return spread.strides.empty()
             ? gradient.is_contiguous()
             : gradient.strides() == at::IntArrayRef(spread.strides);
}

bool is_piece(const at::Tensor& gradient, const at::Tensor& flat,
              const Spread& spread) {
  const FlatPiece& piece = spread.piece;
  if (!flat.defined() || gradient.layout() != at::kStrided) return false;
  const auto* start = static_cast<const std::byte*>(flat.const_data_ptr()) +
                      piece.offset * flat.element_size();
  return gradient.const_data_ptr() == start &&
         gradient.scalar_type() == flat.scalar_type() &&
         gradient.numel() == piece.numel && lies_as(gradient, spread);
}

}  // namespace

at::Tensor FlatRun::of(const at::Tensor& flat) const {
  if (offset == 0 && numel == flat.numel()) return flat;
  at::NoGradGuard no_grad;
  return flat.narrow(0, offset, numel);
}

size_t FlatRuns::number_of(const std::shared_ptr<FlatMaster>& master) {
  auto [at, is_new] = numbers_.try_emplace(master.get(), masters_.size());
  if (is_new) masters_.push_back({master, master->grad()});
  return at->second;
}

bool FlatRuns::add(const Spread& spread, const at::Tensor& gradient,
                   size_t kind) {
  if (spread.piece.numel == 0) return gradient.numel() == 0;
  const size_t master = number_of(spread.master);
  if (!is_piece(gradient, masters_[master].gradient, spread)) {
    return false;
  }
  members_.push_back({master, ordinal_of(spread), kind});
  return true;
}

const FlatPiece& FlatRuns::piece(const Member& member) const {
  return masters_[member.master].master->pieces[member.ordinal];
}

bool FlatRuns::joins(const Member& left, const Member& right, Gaps gaps) const {
  if (left.master != right.master || left.kind != right.kind) return false;
  if (left.ordinal + 1 != right.ordinal) return false;
  return gaps == Gaps::bridged ||
         piece(left).offset + piece(left).numel == piece(right).offset;
}

std::vector<FlatRun> FlatRuns::join(Gaps gaps) const {
  std::vector<Member> members = members_;
  std::sort(members.begin(), members.end(), [](const auto& a, const auto& b) {
    return std::tie(a.master, a.ordinal) < std::tie(b.master, b.ordinal);
  });
  std::vector<FlatRun> runs;
  for (size_t i = 0; i < members.size(); ++i) {
    const FlatPiece& own = piece(members[i]);
    if (i > 0 && joins(members[i - 1], members[i], gaps)) {
      runs.back().numel = own.offset + own.numel - runs.back().offset;
    } else {
      const Master& from = masters_[members[i].master];
      runs.push_back(
          {from.master, from.gradient, own.offset, own.numel, members[i].kind});
    }
  }
  return runs;
}

}  // namespace tessera
