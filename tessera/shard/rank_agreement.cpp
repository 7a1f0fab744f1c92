#include "tessera/shard/rank_agreement.h"

#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/collective_log.h"
#include "tessera/module/gate.h"
#include "tessera/shard/unit.h"

namespace tessera {

namespace {

void check_hashes(const ShardLanes& lanes, const int64_t* hashes) {
  const int ranks = lanes.num_ranks();
  if (std::all_of(hashes, hashes + ranks,
                  [&](int64_t hash) { return hash == hashes[0]; })) {
    return;
  }
  const auto positions = lanes.control->exchange(
      lanes.control->log().describe(), {.phase = "backward"});
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

// Of all that this rank has issued; where a tree has several meshes, of what
// the ranks of this one issue together.
uint64_t hash_of(const ShardLanes& lanes, bool only_mesh) {
  const CollectiveLog& log = lanes.control->log();
  if (only_mesh) return log.hash();
  std::vector<std::string_view> names;
  for (const auto& communicator :
       {lanes.gather, lanes.reduce, lanes.all_reduce, lanes.control}) {
    if (communicator) names.push_back(communicator->name());
  }
  return log.hash(names);
}

// Among the ranks of one mesh.
GradientFlags agree_among(const ShardLanes& lanes, uint64_t hash,
                          const GradientFlags& own) {
  const int64_t ranks = lanes.num_ranks();
  if (ranks == 1) return own;
  std::vector<int64_t> values(ranks, 0);
  values[lanes.control->rank()] = static_cast<int64_t>(hash);
  for (const auto& unit : own) {
    for (const auto& group : unit) {
      values.insert(values.end(), group.begin(), group.end());
    }
  }
  GateOff off;
  torch::NoGradGuard no_grad;
  at::Tensor sums = at::tensor(values, at::kLong).to(lanes.device);
  lanes.control
      ->all_reduce(sums, ReduceOp::sum,
                   {.unit = "", .phase = "backward", .op = ""})
      .wait();
  sums = sums.cpu();
  const int64_t* next = sums.const_data_ptr<int64_t>();
  check_hashes(lanes, next);
  next += ranks;
  GradientFlags had = own;
  for (auto& unit : had) {
    for (auto& group : unit) {
      for (size_t i = 0; i < group.size(); ++i) group[i] = *next++ > 0;
    }
  }
  return had;
}

}  // namespace

GradientFlags agree_on_gradients(const std::vector<Unit*>& units) {
  GradientFlags had(units.size());
  // Meshes in the order of their first units.
  std::vector<size_t> open(units.size());
  std::iota(open.begin(), open.end(), 0);
  while (!open.empty()) {
    const auto lanes = units[open.front()]->lanes();
    const auto others = std::stable_partition(
        open.begin(), open.end(),
        [&](size_t i) { return units[i]->lanes()->control == lanes->control; });
    GradientFlags own;
    for (auto i = open.begin(); i != others; ++i) {
      own.push_back(units[*i]->reduced_gradients());
    }
    const bool only_mesh = own.size() == units.size();
    auto agreed = agree_among(*lanes, hash_of(*lanes, only_mesh), own);
    for (auto i = open.begin(); i != others; ++i) {
      had[*i] = std::move(agreed[i - open.begin()]);
    }
    open.erase(open.begin(), others);
  }
  return had;
}

}  // namespace tessera
