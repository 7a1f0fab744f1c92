#include "tessera/shard/rank_agreement.h"

#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <string>

#include "tessera/base/error.h"
#include "tessera/comm/collective_log.h"
#include "tessera/module/gate.h"

namespace tessera {

GradientFlags RankAgreement::agree(const GradientFlags& own) const {
  const int64_t ranks = lanes_->num_ranks();
  if (ranks == 1) return own;
  std::vector<int64_t> values(ranks, 0);
  values[lanes_->control->rank()] =
      static_cast<int64_t>(lanes_->control->log().hash());
  for (const auto& unit : own) {
    for (const auto& group : unit) {
      values.insert(values.end(), group.begin(), group.end());
    }
  }
  GateOff off;
  torch::NoGradGuard no_grad;
  at::Tensor sums = at::tensor(values, at::kLong).to(lanes_->device);
  lanes_->control
      ->all_reduce(sums, ReduceOp::sum,
                   {.unit = "", .phase = "backward", .op = ""})
      .wait();
  sums = sums.cpu();
  const int64_t* next = sums.const_data_ptr<int64_t>();
  check_hashes(next);
  next += ranks;
  GradientFlags had = own;
  for (auto& unit : had) {
    for (auto& group : unit) {
      for (size_t i = 0; i < group.size(); ++i) group[i] = *next++ > 0;
    }
  }
  return had;
}

void RankAgreement::check_hashes(const int64_t* hashes) const {
  const int ranks = lanes_->num_ranks();
  if (std::all_of(hashes, hashes + ranks,
                  [&](int64_t hash) { return hash == hashes[0]; })) {
    return;
  }
  const auto positions = lanes_->control->exchange(
      lanes_->control->log().describe(), {.phase = "backward"});
  std::string table;
  for (int rank = 0; rank < ranks; ++rank) {
    table += str("\n  rank ", rank, ": ", positions[rank]);
  }
  throw CommError(str(
      "the ranks have issued different collectives since the last check: "
      "blocks of different units may have been mixed. A parameter was read "
      "on some ranks only (a print, a norm or a branch on one rank), or the "
      "ranks run different models. The last collective of each rank:",
      table));
}

}  // namespace tessera
