#include "tessera/comm/join.h"

#include <ATen/Functions.h>

#include <set>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/comm/distributed.h"

namespace tessera {

namespace {

/// Steps of the others after which a rank says how long it has gone on.
constexpr int64_t kManySteps = 1000;

void check(const std::vector<Joinable*>& joinables) {
  require<InvalidArgument>(!joinables.empty(), [] {
    return str(
        "join: there is nothing to join; give what has collectives in "
        "each step, as a DistributedDataParallel.");
  });
  const std::set<Joinable*> distinct(joinables.begin(), joinables.end());
  require<InvalidArgument>(distinct.size() == joinables.size(), [] {
    return str("join: a joinable stands here twice; give each once.");
  });
}

[[noreturn]] void raise_early_end() {
  throw InvalidState(
      "join: a rank has no more batches, and WhenOneEnds::raise was given; all "
      "ranks stop here.");
}

}  // namespace

JoinSession::JoinSession(const std::vector<Joinable*>& joinables,
                         const JoinOptions& options)
    : joinables_(joinables), options_(options) {
  check(joinables);
  const auto ranks = joinables[0]->join_group().ranks();
  for (const Joinable* joinable : joinables) {
    require<InvalidArgument>(joinable->join_group().ranks() == ranks, [] {
      return str(
          "join: the joinables are of several groups of ranks; join "
          "those of one group.");
    });
    require<InvalidState>(joinable->session_ == nullptr, [] {
      return str("join: a joinable is in a join already; end that first.");
    });
  }
  for (Joinable* joinable : joinables_) joinable->session_ = this;
}

JoinSession::~JoinSession() {
  for (Joinable* joinable : joinables_) joinable->session_ = nullptr;
}

at::Tensor JoinSession::sum_over_ranks(std::vector<int32_t> mine) const {
  const Joinable& first = *joinables_[0];
  const at::Tensor sums = at::tensor(mine, at::kInt).to(first.join_device());
  distributed::all_reduce(sums, first.join_group()).wait();
  return sums;
}

void JoinSession::compare_ends(int32_t mine) const {
  if (raises() && sum_over_ranks({mine}).item<int32_t>() > 0) raise_early_end();
}

void JoinSession::note_step(const Joinable& joinable) {
  std::vector<int32_t> mine;
  for (const Joinable* each : joinables_) mine.push_back(each == &joinable);
  turns_ = sum_over_ranks(std::move(mine));
  compare_ends(0);
}

int JoinSession::num_active() {
  return turns_.defined() ? turns_.sum().item<int32_t>()
                          : joinables_[0]->join_group().size();
}

Joinable* JoinSession::whose_turn() const {
  const at::Tensor turns = turns_.cpu();
  Joinable* whose = nullptr;
  for (size_t i = 0; i < joinables_.size(); ++i) {
    if (turns.const_data_ptr<int32_t>()[i] == 0) continue;
    require<InvalidState>(whose == nullptr, [] {
      return str(
          "join: the ranks do not step their joinables in one order; do "
          "the same on all ranks that have batches.");
    });
    whose = joinables_[i];
  }
  return whose;
}

void JoinSession::shadow() {
  auto was_last = Joinable::WasLast::yes;
  for (int64_t steps = 0;; ++steps) {
    turns_ = sum_over_ranks(std::vector<int32_t>(joinables_.size(), 0));
    Joinable* const joinable = whose_turn();
    if (joinable == nullptr) break;
    was_last = Joinable::WasLast::no;
    compare_ends(1);
    if (steps == kManySteps) {
      log_warning("join: this rank has been without batches for ", kManySteps,
                  " steps of the others; spread them more evenly.");
    }
    if (options_.before_shadow_step) options_.before_shadow_step(*joinable);
    joinable->shadow_step();
    if (options_.after_shadow_step) options_.after_shadow_step(*joinable);
  }
  for (Joinable* joinable : joinables_) joinable->end_join(was_last);
}

void join(const std::vector<Joinable*>& joinables,
          const std::function<void()>& body, const JoinOptions& options) {
  JoinSession session(joinables, options);
  body();
  session.shadow();
}

}  // namespace tessera
