#include "tests/plan/measured_step.h"

#include <ATen/record_function.h>
#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/environment.h"
#include "tessera/shard/find_units.h"
#include "tessera/shard/fully_shard.h"
#include "tessera/train/build_model_meta.h"
#include "tessera/train/build_optimizer.h"
#include "tessera/train/train_step.h"
#include "tests/memory/counting_allocator.h"

namespace tessera::train::test {
namespace {

using tessera::test::Bytes;
using tessera::test::CountingAllocator;
using Units = std::vector<std::shared_ptr<Unit>>;

int64_t gathered_now(const Units& units) {
  int64_t bytes = 0;
  for (const auto& unit : units) {
    for (const auto& group : unit->groups()) {
      const bool is_its_own_master =
          group->layout().world_size() == 1 && !group->options().transform &&
          group->options().compute_dtype == group->options().master_dtype;
      if (group->gathered() && !is_its_own_master) bytes += group->full_bytes();
    }
  }
  return bytes;
}

/// LibTorch's, and the fused kernels', which are functions of their own.
bool is_product(const std::string& backward) {
  return backward == "MmBackward0" ||
         backward.find("::LinearEach>") != std::string::npos ||
         backward.find("::SecondHalf>") != std::string::npos;
}

/// Looks at every operator and every backward function of this thread.
class Watch {
 public:
  Watch(const Units& units, Bytes& bytes) : units_(units), bytes_(bytes) {
    current() = this;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&at_start, &at_end)
            .scopes({at::RecordScope::FUNCTION,
                     at::RecordScope::BACKWARD_FUNCTION}));
  }
  ~Watch() {
    at::removeCallback(handle_);
    current() = nullptr;
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  [[nodiscard]] int64_t most_gathered() const { return most_gathered_; }
  /// The peak until the first product's backward.
  [[nodiscard]] int64_t first_peak() const { return first_peak_; }

 private:
  static Watch*& current() {
    thread_local Watch* watch = nullptr;
    return watch;
  }
  static std::unique_ptr<at::ObserverContext> at_start(
      const at::RecordFunction& function) {
    current()->look(function.name());
    return nullptr;
  }
  static void at_end(const at::RecordFunction&, at::ObserverContext*) {
    current()->look("");
  }

  void look(const std::string& name) {
    most_gathered_ = std::max(most_gathered_, gathered_now(units_));
    if (first_peak_ == 0 && is_product(name)) {
      first_peak_ = bytes_.take_peak();
    }
    if (name == "EmbeddingBackward0") (void)bytes_.take_peak();
  }

  const Units& units_;
  Bytes& bytes_;
  at::CallbackHandle handle_ = at::INVALID_CALLBACK_HANDLE;
  int64_t most_gathered_ = 0;
  int64_t first_peak_ = 0;
};

Batch random_tokens(const MeasuredSetup& setup) {
  const auto tokens = torch::randint(
      0, setup.model.vocab, {setup.batch, setup.model.seq + 1}, torch::kLong);
  return {tokens.narrow(1, 0, setup.model.seq).contiguous(),
          tokens.narrow(1, 1, setup.model.seq).contiguous()};
}

class Meter {
 public:
  Meter(const MeasuredSetup& setup, const World& world)
      : setup_(setup),
        shard_mesh_(shard_mesh(setup.how, world)),
        mesh_(shard_mesh_.flatten("all")),
        tokens_(random_tokens(setup)) {
    const CountingAllocator::Scope scope(bytes_);
    model_ = build_model_meta(setup.model);
    shard_model(*model_, setup.how, shard_mesh_);
    draw_weights(*model_,
                 {.seed = 7, .std = 0.2, .layers = setup.model.layers});
    units_ = units_below(*model_);
    measured_.model = bytes_.now();
    optimizer_ = build_optimizer(*model_, {});
  }

  MeasuredStep run() {
    const CountingAllocator::Scope scope(bytes_);
    step();
    step();
    measured_.optimizer = bytes_.now() - measured_.model;
    (void)bytes_.take_peak();
    step();
    measured_.peak = bytes_.take_peak();
    measure_passes();
    measure_waiting();
    measure_travelling();
    return measured_;
  }

 private:
  void step() { (void)train_step(*model_, *optimizer_, {tokens_}, mesh_, {}); }

  at::Tensor loss_of(const Batch& batch) {
    return model_->sum_of_losses(batch.input, batch.target);
  }

  void measure_passes() {
    for (const auto& unit : units_) unit->reset_counts();
    const Watch watch(units_, bytes_);
    const int64_t before = bytes_.now();
    Batch batch{tokens_.input.clone(), tokens_.target};
    (void)bytes_.take_peak();
    auto loss = loss_of(batch);
    batch = {};
    const int64_t kept = gathered_now(units_);
    measured_.activations = bytes_.now() - before - kept;
    loss.backward();
    measured_.loss_peak = watch.first_peak() - before - kept;
    measured_.reducing = bytes_.take_peak() - before;
    loss.reset();
    measured_.gradients = bytes_.now() - before;
    measured_.gathered = watch.most_gathered();
    for (const auto& unit : units_) {
      const auto groups = static_cast<int64_t>(unit->groups().size());
      measured_.num_gathers += unit->counts().gathers * groups;
      measured_.num_reduces += unit->counts().reduces * groups;
    }
    optimizer_->zero_grad();
  }

  void measure_waiting() {
    const int64_t before = bytes_.now();
    set_requires_gradient_sync(*model_, Sync::off);
    loss_of(tokens_).backward();
    measured_.waiting = bytes_.now() - before;
    set_requires_gradient_sync(*model_, Sync::on);
    loss_of(tokens_).backward();
    optimizer_->zero_grad();
  }

  void measure_travelling() {
    for (torch::nn::Module* unit : model_->units()) {
      const int64_t before = bytes_.now();
      (void)bytes_.take_peak();
      unshard(*unit);
      const int64_t full = bytes_.now() - before;
      measured_.travelling =
          std::max(measured_.travelling, bytes_.take_peak() - before - full);
      reshard(*unit);
    }
  }

  const MeasuredSetup& setup_;
  const DeviceMesh shard_mesh_;
  const DeviceMesh mesh_;
  const Batch tokens_;  // the caller's: not counted
  Bytes bytes_;
  LanguageModelPtr model_;
  Units units_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  MeasuredStep measured_;
};

}  // namespace

MeasuredStep measure_step(const MeasuredSetup& setup) {
  environment::disable_flight_recorder();
  at::set_num_threads(1);
  const CountingAllocator counting;
  MeasuredStep measured;
  run_ranks(setup.ranks, [&](const World& world) {
    Meter meter(setup, world);
    const MeasuredStep mine = meter.run();
    if (world.rank() + 1 == setup.ranks) measured = mine;
  });
  return measured;
}

}  // namespace tessera::train::test
