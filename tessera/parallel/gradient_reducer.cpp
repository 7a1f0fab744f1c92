#include "tessera/parallel/gradient_reducer.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/distributed.h"
#include "tessera/module/backward_end.h"
#include "tessera/parallel/model_agreement.h"

namespace tessera {

namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr size_t kMostNames = 8;

/// "'a', 'b' and 7 more"
std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMostNames); ++i) {
    text += str(i == 0 ? "'" : ", '", names[i], "'");
  }
  const size_t more = names.size() - std::min(names.size(), kMostNames);
  return more == 0 ? text : str(text, " and ", more, " more");
}

}  // namespace

GradientReducer::GradientReducer(const std::vector<NamedTensor>& parameters,
                                 distributed::ProcessGroup group,
                                 const DataParallelOptions& options)
    : group_(std::move(group)),
      unused_(options.unused_parameters),
      static_graph_(options.static_graph),
      divisor_(group_.size()),
      buckets_(tensors_of(parameters),
               static_cast<int64_t>(options.bucket_cap_mib * kMiB),
               options.gradient_memory) {
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
    require<InvalidState>(wrong == nullptr, [&] {
      return str("DistributedDataParallel: '", slot.name, "' ", wrong,
                 " when it was wrapped; freeze, move and cast parameters "
                 "before, or wrap the model anew.");
    });
  }
}

void GradientReducer::prepare_forward() {
  check_parameters();
  rebuild_buckets();
}

at::Tensor GradientReducer::mark_output(const at::Tensor& output) {
  if (!output.defined() || !output.requires_grad()) return output;
  // A leaf keeps its hooks for good.
  const at::Tensor marked = output.is_leaf() ? output.view_as(output) : output;
  marked.register_hook([weak = weak_from_this()](const at::Tensor&) {
    const auto self = weak.lock();
    require<InvalidState>(self != nullptr, [] {
      return str(
          "DistributedDataParallel: it is gone, but a backward of "
          "one of its forwards began; keep it until then.");
    });
    self->begin_pass();
  });
  return marked;
}

void GradientReducer::set_comm_hook(CommHook hook) {
  require<InvalidArgument>(hook != nullptr, [] {
    return str("DistributedDataParallel::set_comm_hook: the hook is empty.");
  });
  require<InvalidState>(!hook_ && !running_, [] {
    return str("DistributedDataParallel::set_comm_hook: ",
               "there is one already, or backward is running; set one hook, "
               "before the first backward.");
  });
  hook_ = std::move(hook);
}

CommHook GradientReducer::hook() const {
  if (hook_) return hook_;
  return [this](const GradientBucket& bucket) -> ReducedBucket {
    const at::Tensor values = bucket.buffer();
    // Divided first: a sum of 16-bit values could overflow.
    values.mul_(1.0 / static_cast<double>(divisor_));
    auto work = std::make_shared<distributed::Work>(
        distributed::all_reduce(values, group_));
    return [work, values] {
      work->wait();
      return values;
    };
  };
}

bool GradientReducer::finds_unused() const {
  return unused_ == UnusedParameters::find && static_graph_ == StaticGraph::no;
}

void GradientReducer::begin_pass() {
  using torch::autograd::Engine;
  const std::scoped_lock lock(mutex_);
  if (running_) return;
  if (!Engine::get_default_engine().is_checkpoint_valid()) {
    return refuse_gradients();
  }
  running_ = true;
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

void GradientReducer::note_gradient(size_t i) {
  const std::scoped_lock lock(mutex_);
  Slot& slot = slots_[i];
  require<Unsupported>(!refuses_, [&] {
    return str("DistributedDataParallel: '", slot.name,
               "' got a gradient in a "
               "backward for some inputs only; call backward without them.");
  });
  slot.used = true;
  if (!running_) return;
  if (slot.count++ == 0 && num_passes_ == 0) came_in_order_.push_back(i);
  if (learns_graph()) return;
  require<InvalidState>(slot.count <= slot.expected, [&] {
    return str("DistributedDataParallel: '", slot.name, "' got gradient ",
               slot.count, " of one backward; expected ", slot.expected,
               ". It is used in several recomputed regions, or in another "
               "way than before: give static_graph = StaticGraph::yes where "
               "all steps are alike.");
  });
  if (slot.count < slot.expected) return;
  buckets_.note_gradient(i, hook());
}

void GradientReducer::check_all_came() const {
  std::vector<std::string> missing;
  for (const Slot& slot : slots_) {
    if (slot.count < slot.expected) missing.push_back(slot.name);
  }
  const bool is_static = static_graph_ == StaticGraph::yes;
  require<InvalidState>(missing.empty(), [&] {
    return str("DistributedDataParallel: backward gave no gradient to ",
               listed(missing),
               is_static ? ", which had one in the first pass; with "
                           "StaticGraph::yes all passes are alike."
                         : "; give unused_parameters = UnusedParameters::find, "
                           "or use all of them in each forward.");
  });
}

// What each parameter has in this pass, and will have.
void GradientReducer::learn_graph() {
  for (Slot& slot : slots_) slot.expected = slot.count;
}

std::vector<bool> GradientReducer::used_anywhere() {
  const bool asks = finds_unused() || learns_graph();
  if (!asks && static_graph_ == StaticGraph::yes) return used_always_;
  if (!asks) return std::vector<bool>(slots_.size(), true);
  std::vector<bool> mine;
  for (const Slot& slot : slots_) mine.push_back(slot.used);
  return true_anywhere(mine, slots_[0].tensor.device(), group_);
}

void GradientReducer::finish_pass() {
  const std::scoped_lock lock(mutex_);
  const bool learns = learns_graph();
  if (learns) {
    learn_graph();
  } else if (!finds_unused()) {
    check_all_came();
  }
  buckets_.start_all(hook());
  const std::vector<bool> used = used_anywhere();
  if (learns) used_always_ = used;
  buckets_.finish(used);
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
  for (Slot& slot : slots_) slot.used = false;
  buckets_.start_with_zeros(hook());
  const std::vector<bool> used = used_anywhere();
  if (learns_graph()) used_always_ = used;
  buckets_.finish(used);
  end_pass();
}

}  // namespace tessera
