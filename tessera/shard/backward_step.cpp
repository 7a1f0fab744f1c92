#include "tessera/shard/backward_step.h"

#include "tessera/base/error.h"
#include "tessera/shard/parameter_group.h"

namespace tessera {

void BackwardStep::note_late_use(const std::string& unit) {
  habit_ = Habit::late;
  require<InvalidState>(!ran_, [&] {
    return str("unit '", unit,
               "' is needed again after its optimizer step in this backward "
               "pass (step_in_backward): in the passes before, nothing read it "
               "or brought it a gradient after its gradients had been reduced. "
               "It steps at the end of backward from now on; its weights have "
               "taken this step already, so load a checkpoint, or go on "
               "without this batch.");
  });
}

void BackwardStep::run(
    const std::vector<std::unique_ptr<ParameterGroup>>& groups) {
  std::vector<at::Tensor> shards;
  for (const auto& group : groups) {
    for (size_t i = 0; i < group->size(); ++i) {
      const at::Tensor& shard = group->shard(i);
      if (shard.grad().defined()) shards.push_back(shard);
    }
  }
  if (shards.empty()) return;
  ran_ = true;
  const auto& lanes = *groups.front()->lanes();
  if (lanes.all_reduce) {
    for (const auto& group : groups) in_use_.push_back(group->master()->grad());
  }
  (*step_)(shards);
  for (const at::Tensor& shard : shards) shard.mutable_grad().reset();
  done_.record(current_stream(lanes.device));
}

void BackwardStep::join(const c10::Stream& stream) {
  if (ran_) done_.block(stream);
  in_use_.clear();
}

void BackwardStep::end_pass(bool reduced) {
  if (reduced && habit_ == Habit::unknown) habit_ = Habit::quiet;
  ran_ = false;
}

void BackwardStep::abandon_pass() noexcept {
  ran_ = false;
  in_use_.clear();
}

}  // namespace tessera
