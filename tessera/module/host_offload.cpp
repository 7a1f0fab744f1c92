#include "tessera/module/host_offload.h"

#include "tessera/base/error.h"
#include "tessera/module/host_slots.h"
#include "tessera/module/kept_on_host.h"
#include "tessera/module/offload_timeline.h"
#include "tessera/module/recompute.h"
#include "tessera/module/storage_memory.h"

namespace tessera {

using internal::HostSlots;
using internal::KeptOnHost;

HostOffload::HostOffload() : slots_(std::make_shared<HostSlots>()) {}

void HostOffload::keep(const std::vector<at::Tensor>& values,
                       const std::vector<at::Tensor>& users) {
  for (const at::Tensor& value : values) {
    internal::require_whole_storage(value, "HostOffload");
    require<InvalidArgument>(value.device() == values.front().device(), [&] {
      return str("HostOffload: values of one call are on ",
                 values.front().device().str(), " and ", value.device().str(),
                 "; give those of one device.");
    });
  }
  if (values.empty() || in_second_run()) return;
  std::shared_ptr<KeptOnHost> kept;
  for (const at::Tensor& user : users) {
    if (!user.requires_grad()) continue;
    if (!kept) kept = std::make_shared<KeptOnHost>(values, slots_, last_);
    user.register_hook([kept](const at::Tensor&) { kept->fill(); });
  }
  if (!kept) return;
  last_ = kept;
  under_way_.push_back(kept);
  settle(kOffloadsUnderWay);
}

void HostOffload::end_forward(const at::Tensor& output) {
  settle(0);
  if (!output.requires_grad() || last_.expired()) return;
  output.register_hook([last = last_](const at::Tensor&) {
    if (const auto kept = last.lock()) kept->start_return();
  });
}

void HostOffload::settle(size_t most) {
  while (under_way_.size() > most) {
    if (const auto kept = under_way_.front().lock()) kept->settle();
    under_way_.pop_front();
  }
}

int64_t HostOffload::host_bytes() const { return slots_->num_bytes(); }

}  // namespace tessera
