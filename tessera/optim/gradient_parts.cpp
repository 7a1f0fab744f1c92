#include "tessera/optim/gradient_parts.h"

#include <ATen/core/grad_mode.h>

#include <deque>
#include <unordered_set>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/optim/flat_runs.h"

namespace tessera {
namespace {

class Collector {
 public:
  explicit Collector(const char* who) : who_(who) {}

  void add(const at::Tensor& parameter) {
    const Spread* spread = spread_of(parameter);
    require<InvalidState>(!spread || !spread->master->steps_in_backward, [&] {
      return tessera::str(
          who_, ": ", spread->name,
          " is stepped inside of backward (step_in_backward), so its gradient "
          "is gone. What needs all gradients before the step cannot be had "
          "with it: call step_in_backward(module, nullptr) first.");
    });
    auto& [part, runs] = slot_of(parameter, spread);
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) return;
    require<Unsupported>(gradient.layout() == at::kStrided, [&] {
      return tessera::str(who_, ": the gradient of ",
                          spread ? spread->name : "a parameter", " ",
                          parameter.sizes(),
                          " is sparse; make its embedding with sparse(false).");
    });
    if (gradient.numel() == 0) return;
    if (spread && runs.add(*spread, gradient)) return;
    part.gradients.push_back(local(gradient));
  }

  [[nodiscard]] std::vector<GradientPart> finish() {
    std::vector<GradientPart> parts;
    for (auto& [part, runs] : slots_) {
      for (const FlatRun& run : runs.join(Gaps::apart)) add(run, part);
      parts.push_back(std::move(part));
    }
    return parts;
  }

 private:
  static void add(const FlatRun& run, GradientPart& part) {
    part.gradients.push_back(run.of(run.flat_gradient));
    auto norms = run.master->grad_norms({run.offset, run.numel});
    if (norms.empty()) return;
    part.norms_kept.emplace(part.gradients.back().unsafeGetTensorImpl(),
                            std::move(norms));
  }

  struct Slot {
    GradientPart part;
    FlatRuns runs;
  };

  Slot& slot_of(const at::Tensor& parameter, const Spread* spread) {
    auto communicator = spread ? spread->communicator : nullptr;
    for (Slot& slot : slots_) {
      if (slot.part.communicator == communicator) return slot;
    }
    // Gradients of offloaded shards are elsewhere.
    const at::Device device =
        communicator ? communicator->device() : parameter.device();
    slots_.push_back({{std::move(communicator), device, {}, {}}, {}});
    return slots_.back();
  }

  const char* who_;
  std::deque<Slot> slots_;  // by first appearance
};

}  // namespace

GradientParts collect_gradients(const std::vector<at::Tensor>& parameters,
                                const char* who) {
  GradientParts all;
  Collector collector(who);
  std::unordered_set<const void*> seen;
  for (const at::Tensor& parameter : parameters) {
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    collector.add(parameter);
    if (parameter.scalar_type() == at::kDouble) all.has_double = true;
  }
  all.parts = collector.finish();
  if (!parameters.empty()) all.device = parameters.front().device();
  return all;
}

std::map<DeviceAndDtype, std::vector<at::Tensor>, DeviceAndDtypeOrder>
by_device_and_dtype(const std::vector<at::Tensor>& tensors) {
  std::map<DeviceAndDtype, std::vector<at::Tensor>, DeviceAndDtypeOrder> lists;
  for (const at::Tensor& tensor : tensors) {
    lists[{tensor.device(), tensor.scalar_type()}].push_back(tensor);
  }
  return lists;
}

}  // namespace tessera
