#include "tessera/shard/rank_agreement.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/collective_log.h"
#include "tessera/device/stream.h"
#include "tessera/module/gate.h"
#include "tessera/shard/unit.h"

namespace tessera {

namespace {

bool are_equal(const int64_t* hashes, int64_t count) {
  return std::all_of(hashes, hashes + count,
                     [&](int64_t hash) { return hash == hashes[0]; });
}

constexpr auto kUnlike =
    "the ranks have issued different collectives since the last check: blocks "
    "of different units may have been mixed. A parameter was read on some "
    "ranks only (a print, a norm or a branch on one rank), or the ranks run "
    "different models. Units that some ranks leave out in a step, such as "
    "experts, are gathered on all ranks all the same: give them "
    "Reshard::never, and call unshard on each before forward.";

/// Where all ranks find it at the same time.
[[noreturn]] void raise_unlike(const ShardLanes& lanes) {
  std::string table;
  const auto positions = lanes.control->exchange(
      lanes.control->log().describe(), {.phase = "backward"});
  for (size_t rank = 0; rank < positions.size(); ++rank) {
    table += str("\n  rank ", rank, ": ", positions[rank]);
  }
  throw CommError(str(kUnlike, " The last collective of each rank:", table));
}

/// Where each rank finds it on its own, and others may wait for it already.
/// `lanes`: null when the model is gone.
[[noreturn]] void give_up_unlike(const ShardLanes* lanes) {
  if (lanes) lanes->control->give_up(kUnlike);
  throw CommError(kUnlike);
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

/// The sum over ranks on its way.
class Sum {
 public:
  /// values: hashes of all ranks, then counts.
  Sum(const ShardLanes& lanes, const std::vector<int64_t>& values)
      : num_hashes_(lanes.num_ranks()), on_host_(lanes.device.is_cpu()) {
    GateOff off;
    torch::NoGradGuard no_grad;
    if (on_host_) {
      result_ = at::tensor(values, at::kLong);
      all_reduce(lanes, result_);
      return;
    }
    // Pinned on both sides, so that nothing waits.
    const auto options = at::TensorOptions(at::kLong).pinned_memory(true);
    const auto size = static_cast<int64_t>(values.size());
    const at::Tensor own = at::empty({size}, options);
    std::copy(values.begin(), values.end(), own.mutable_data_ptr<int64_t>());
    const at::Tensor there = own.to(lanes.device, /*non_blocking=*/true);
    all_reduce(lanes, there);
    result_ = at::empty({size}, options);
    result_.copy_(there, /*non_blocking=*/true);
    done_.record(current_stream(lanes.device));
  }

  [[nodiscard]] bool is_there() const { return done_.reached(); }

  /// Counts, after the hashes were found equal. Waits for the device.
  const int64_t* counts(const ShardLanes* lanes) {
    done_.synchronize();
    const auto* values = result_.const_data_ptr<int64_t>();
    if (!are_equal(values, num_hashes_)) {
      on_host_ ? raise_unlike(*lanes) : give_up_unlike(lanes);
    }
    return values + num_hashes_;
  }

 private:
  static void all_reduce(const ShardLanes& lanes, const at::Tensor& tensor) {
    lanes.control
        ->all_reduce(tensor, ReduceOp::sum,
                     {.unit = "", .phase = "backward", .op = ""})
        .wait();
  }

  int64_t num_hashes_;
  bool on_host_;
  at::Tensor result_;
  StreamEvent done_;
};

/// What one rank asks those of its mesh.
struct Question {
  GradientFlags own;
  // Nothing that the others can say changes the answer for this rank: it has a
  // gradient for every parameter that wants one.
  bool own_is_all = true;
};

// Among the ranks of one mesh.
GradientFlags agree_among(const std::shared_ptr<const ShardLanes>& lanes,
                          uint64_t hash, const Question& question) {
  const int64_t ranks = lanes->num_ranks();
  if (ranks == 1) return question.own;
  std::vector<int64_t> values(ranks, 0);
  values[lanes->control->rank()] = static_cast<int64_t>(hash);
  for (const auto& unit : question.own) {
    for (const auto& group : unit) {
      values.insert(values.end(), group.begin(), group.end());
    }
  }
  lanes->control->run_due_checks();
  auto sum = std::make_shared<Sum>(*lanes, values);
  if (question.own_is_all && !lanes->device.is_cpu()) {
    lanes->control->check_later({.is_ready = [sum] { return sum->is_there(); },
                                 .run =
                                     [sum, weak = std::weak_ptr(lanes)] {
                                       (void)sum->counts(weak.lock().get());
                                     }});
    return question.own;
  }
  const int64_t* next = sum->counts(lanes.get());
  GradientFlags had = question.own;
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
    Question question;
    for (auto i = open.begin(); i != others; ++i) {
      question.own.push_back(units[*i]->reduced_gradients());
      question.own_is_all &= units[*i]->has_all_gradients();
    }
    const bool only_mesh = question.own.size() == units.size();
    auto agreed = agree_among(lanes, hash_of(*lanes, only_mesh), question);
    for (auto i = open.begin(); i != others; ++i) {
      had[*i] = std::move(agreed[i - open.begin()]);
    }
    open.erase(open.begin(), others);
  }
  return had;
}

}  // namespace tessera
