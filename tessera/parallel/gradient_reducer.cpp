#include "tessera/parallel/gradient_reducer.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/module/backward_end.h"
#include "tessera/module/recompute.h"
#include "tessera/parallel/comm_hooks.h"
#include "tessera/parallel/model_agreement.h"
#include "tessera/parallel/reducer_errors.h"

namespace tessera {

namespace {

constexpr int64_t kMiB = 1 << 20;

}  // namespace

GradientReducer::GradientReducer(const std::vector<NamedTensor>& parameters,
                                 distributed::ProcessGroup group,
                                 const DataParallelOptions& options)
    : group_(std::move(group)),
      unused_(options.unused_parameters),
      static_graph_(options.static_graph),
      memory_(options.gradient_memory),
      divisor_(group_.size()),
      buckets_(tensors_of(parameters),
               static_cast<int64_t>(options.bucket_cap_mib * kMiB),
               options.gradient_memory),
      hook_(comm_hooks::all_reduce(group_)) {
  for (const NamedTensor& parameter : parameters) {
    Slot& slot = slots_.emplace_back();
    slot.name = parameter.name;
    slot.tensor = parameter.tensor;
  }
  for (size_t i = 0; i < slots_.size(); ++i) add_hook(i);
  // Backward comes to the last first, mostly.
  std::vector<size_t> order(slots_.size());
  std::iota(order.rbegin(), order.rend(), size_t{0});
  buckets_.build(order);
}

GradientReducer::~GradientReducer() {
  for (Slot& slot : slots_) slot.accumulator->del_post_hook(slot.hook);
}

void GradientReducer::add_hook(size_t i) {
  using torch::autograd::variable_list;
  Slot& slot = slots_[i];
  slot.accumulator = torch::autograd::impl::grad_accumulator(slot.tensor);
  slot.hook = slot.accumulator->add_post_hook(
      std::make_unique<torch::autograd::utils::LambdaPostHook>(
          [this, i](const variable_list& outputs, const variable_list&) {
            note_gradient(i);
            return outputs;
          }));
}

// Once, in the order of rank 0: later passes then fill one bucket after the
// other.
void GradientReducer::rebuild_buckets() {
  if (rebuilt_ || finds_unused() || num_passes_ == 0) return;
  rebuilt_ = true;
  auto wanted = numbers_of_root(came_in_order_, 0, group_);
  // Those without a gradient in that pass: StaticGraph has them.
  for (size_t i = slots_.size(); i-- > 0;) {
    if (std::ranges::find(wanted, i) == wanted.end()) wanted.push_back(i);
  }
  buckets_.build(wanted);
}

void GradientReducer::check_parameters() const {
  for (const Slot& slot : slots_) {
    const char* wrong =
        !slot.tensor.requires_grad() ? "no longer requires a gradient"
        : torch::autograd::impl::grad_accumulator(slot.tensor) !=
                slot.accumulator
            ? "has another dtype or device than it had"
            : nullptr;
    if (wrong != nullptr) reducer_errors::raise_changed(slot.name, wrong);
  }
}

void GradientReducer::prepare_forward() {
  check_parameters();
  rebuild_buckets();
  ++pending_forwards_;
}

at::Tensor GradientReducer::mark_output(const at::Tensor& output) {
  if (!output.defined() || !output.requires_grad()) return output;
  // A leaf keeps its hooks for good.
  const at::Tensor marked = output.is_leaf() ? output.view_as(output) : output;
  const auto begin = [weak = weak_from_this()](const at::Tensor&) {
    const auto self = weak.lock();
    require<InvalidState>(self != nullptr, [] {
      return str(
          "DistributedDataParallel: it is gone, but a backward of "
          "one of its forwards began; keep it until then.");
    });
    const std::scoped_lock lock(self->mutex_);
    self->begin_pass();
  };
  marked.register_hook(begin);
  // A view that is written in place gets another node, without the hook.
  if (marked.is_view()) {
    const at::Tensor base(marked._base());
    if (base.requires_grad() && !base.is_leaf()) base.register_hook(begin);
  }
  return marked;
}

void GradientReducer::set_comm_hook(CommHook hook) {
  require<InvalidArgument>(hook != nullptr, [] {
    return str("DistributedDataParallel::set_comm_hook: the hook is empty.");
  });
  require<InvalidState>(!has_own_hook_ && !running_, [] {
    return str("DistributedDataParallel::set_comm_hook: ",
               "there is one already, or backward is running; set one hook, "
               "before the first backward.");
  });
  hook_ = std::move(hook);
  has_own_hook_ = true;
}

bool GradientReducer::finds_unused() const {
  return unused_ == UnusedParameters::find && static_graph_ == StaticGraph::no;
}

void GradientReducer::begin_pass() {
  if (running_) return;
  if (backward_asks_by_name()) return refuse_gradients();
  running_ = true;
  if (pending_forwards_ > 0) --pending_forwards_;
  std::vector<bool> expected;
  for (Slot& slot : slots_) {
    slot.count = 0;
    expected.push_back(slot.expected > 0);
  }
  buckets_.begin_pass(expected);
  const auto abandon = [self = shared_from_this()] { self->abandon_pass(); };
  at_backward_end(
      [self = shared_from_this(), abandon] {
        try {
          self->finish_pass();
        } catch (...) {
          abandon();
          throw;
        }
      },
      abandon);
}

// Gradients that are asked for by name (torch::autograd::grad) stay on their
// rank, as with PyTorch. A backward that adds up some of them would leave part
// of a bucket out.
void GradientReducer::refuse_gradients() {
  refuses_ = true;
  const auto end = [self = shared_from_this()] { self->refuses_ = false; };
  at_backward_end(end, end);
}

// Nothing comes by without a forward of the wrapper, or a NoSync that says so:
// it would stay on this rank. A forward may have handed out more than it
// returned (a loss that a member keeps), which may come first.
void GradientReducer::begin_without_output(const Slot& slot) {
  if (running_ || had_no_sync_) return;
  if (pending_forwards_ == 0 || in_region_backward()) {
    reducer_errors::raise_stray(slot.name);
  }
  begin_pass();
}

void GradientReducer::note_gradient(size_t i) {
  const std::scoped_lock lock(mutex_);
  Slot& slot = slots_[i];
  if (refuses_) reducer_errors::raise_by_name(slot.name);
  slot.used = true;
  begin_without_output(slot);
  if (!running_) return;
  if (slot.count++ == 0 && num_passes_ == 0) came_in_order_.push_back(i);
  if (learns_graph()) return;
  if (slot.count > slot.expected) {
    reducer_errors::raise_again(slot.name, slot.count, slot.expected);
  }
  if (slot.count < slot.expected) return;
  buckets_.note_gradient(i, hook_call());
}

void GradientReducer::check_all_came() const {
  std::vector<std::string> missing;
  for (const Slot& slot : slots_) {
    if (slot.count < slot.expected) missing.push_back(slot.name);
  }
  if (missing.empty()) return;
  using reducer_errors::Expectation;
  reducer_errors::raise_missing(missing, static_graph_ == StaticGraph::yes
                                             ? Expectation::as_in_the_first_pass
                                             : Expectation::one_each);
}

// What each parameter has in this pass, and will have.
void GradientReducer::learn_graph() {
  for (Slot& slot : slots_) slot.expected = slot.count;
  learned_graph_ = true;
}

// Of a static graph it is asked once, also by a rank that shadows that pass.
std::vector<bool> GradientReducer::used_anywhere() {
  const bool is_static = static_graph_ == StaticGraph::yes;
  if (is_static && num_passes_ > 0) return used_always_;
  if (!is_static && !finds_unused()) {
    return std::vector<bool>(slots_.size(), true);
  }
  std::vector<bool> mine;
  for (const Slot& slot : slots_) mine.push_back(slot.used);
  auto used = true_anywhere(mine, slots_[0].tensor.device(), group_);
  if (is_static) used_always_ = used;
  return used;
}

// Those that lie in a bucket would be reduced with it.
void GradientReducer::take_unused_out_of_buckets() {
  if (!finds_unused() || memory_ != GradientMemory::bucket) return;
  const at::NoGradGuard no_grad;
  for (Slot& slot : slots_) {
    at::Tensor& gradient = slot.tensor.mutable_grad();
    if (!slot.used && gradient.defined()) gradient = gradient.clone();
  }
}

void GradientReducer::finish_pass() {
  const std::scoped_lock lock(mutex_);
  if (learns_graph()) {
    learn_graph();
  } else if (!finds_unused()) {
    check_all_came();
  }
  take_unused_out_of_buckets();
  buckets_.start_all(hook_call());
  buckets_.finish(used_anywhere());
  end_pass();
}

void GradientReducer::end_pass() {
  for (Slot& slot : slots_) slot.used = false;
  running_ = false;
  ++num_passes_;
}

void GradientReducer::abandon_pass() {
  const std::scoped_lock lock(mutex_);
  buckets_.abandon();
  if (num_passes_ == 0) came_in_order_.clear();
  running_ = false;
}

void GradientReducer::shadow_backward() {
  for (Slot& slot : slots_) {
    slot.used = false;
    // This rank's last one: nobody clears it here, and where the others have
    // none now it must not be stepped with.
    slot.tensor.mutable_grad().reset();
  }
  buckets_.start_with_zeros(hook_call());
  buckets_.finish(used_anywhere());
  --pending_forwards_;
  end_pass();
}

}  // namespace tessera
