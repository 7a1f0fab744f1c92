#include "tessera/shard/group_norms.h"

#include <torch/csrc/autograd/variable.h>

#include <utility>
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

bool has_hook_behind_a_gradient(const ParameterGroup& group) {
  for (size_t i = 0; i < group.size(); ++i) {
    if (torch::autograd::impl::post_acc_grad_hooks(group.shard(i))) return true;
  }
  return false;
}

void keep_norms(ParameterGroup& group) {
  Below below;
  const at::Tensor flat = group.master()->grad();
  if (!flat.defined()) return;
  FlatMaster& master = *group.master();
  std::vector<NormsOfPart> kept;
  std::vector<FlatPiece> open;
  for (const FlatPiece& run : joined(gradients_in(flat, group))) {
    auto norms = master.grad_norms(run);
    if (norms.empty()) {
      open.push_back(run);
    } else {
      kept.push_back({run, std::move(norms)});
    }
  }
  const auto late = norms_of(flat, open);
  kept.insert(kept.end(), late.begin(), late.end());
  master.keep_grad_norms(std::move(kept));
}

}  // namespace tessera
