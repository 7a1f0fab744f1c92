#include "tessera/shard/group_norms.h"

#include <algorithm>
#include <vector>

#include "tessera/shard/below.h"
#include "tessera/shard/gradient_norms.h"
#include "tessera/tensor/spread.h"

namespace tessera {
namespace {

bool lies_in(const at::Tensor& gradient, const at::Tensor& flat) {
  return gradient.defined() && gradient.has_storage() &&
         gradient.storage().unsafeGetStorageImpl() ==
             flat.storage().unsafeGetStorageImpl();
}

std::vector<FlatPiece> gradients_in(const at::Tensor& flat,
                                    ParameterGroup& group) {
  std::vector<FlatPiece> pieces;
  for (size_t i = 0; i < group.size(); ++i) {
    const at::Tensor& shard = group.shard(i);
    if (lies_in(shard.grad(), flat)) pieces.push_back(spread_of(shard)->piece);
  }
  return pieces;
}

}  // namespace

void keep_norms(ParameterGroup& group) {
  Below below;
  const at::Tensor flat = group.master()->grad();
  if (!flat.defined()) return;
  std::vector<NormsOfPart> kept;
  std::vector<FlatPiece> open;
  for (const FlatPiece& run : joined(gradients_in(flat, group))) {
    const auto& taken = group.gradients().norms_taken();
    const auto own =
        std::find_if(taken.begin(), taken.end(), [&](const NormsOfPart& norms) {
          return norms.part.offset == run.offset &&
                 norms.part.numel == run.numel;
        });
    if (own == taken.end()) {
      open.push_back(run);
    } else {
      kept.push_back(*own);
    }
  }
  const auto late = norms_of(flat, open);
  kept.insert(kept.end(), late.begin(), late.end());
  group.gradients().forget_norms_taken();
  group.master()->keep_grad_norms(std::move(kept));
}

}  // namespace tessera
