#include "tessera/parallel/join.h"

#include <ATen/Functions.h>

#include <set>

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

at::Tensor JoinSession::sum_over_ranks(int32_t mine) {
  const Joinable& first = *joinables_[0];
  const at::Tensor sum = at::full(
      {1}, mine, at::TensorOptions(first.join_device()).dtype(at::kInt));
  distributed::all_reduce(sum, first.join_group()).wait();
  return sum;
}

void JoinSession::note_step(const Joinable& joinable) {
  if (&joinable != joinables_[0]) return;
  active_ = sum_over_ranks(1);
  if (raises() && sum_over_ranks(0).item<int32_t>() > 0) raise_early_end();
}

int JoinSession::num_active() {
  return active_.defined() ? active_.item<int32_t>()
                           : joinables_[0]->join_group().size();
}

void JoinSession::shadow() {
  auto was_last = Joinable::WasLast::yes;
  for (int64_t steps = 0;; ++steps) {
    active_ = sum_over_ranks(0);
    if (active_.item<int32_t>() == 0) break;
    was_last = Joinable::WasLast::no;
    if (raises()) {
      (void)sum_over_ranks(1);
      raise_early_end();
    }
    if (steps == kManySteps) {
      log_warning("join: this rank has been without batches for ", kManySteps,
                  " steps of the others; spread them more evenly.");
    }
    for (Joinable* joinable : joinables_) joinable->shadow_step();
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
