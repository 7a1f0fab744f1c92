#include "tessera/module/host_offload.h"

#include <limits>

#include "tessera/base/error.h"
#include "tessera/module/host_slots.h"
#include "tessera/module/kept_on_host.h"
#include "tessera/module/recompute.h"
#include "tessera/module/storage_memory.h"

namespace tessera {

using internal::HostSlots;
using internal::KeptOnHost;

HostOffload::HostOffload(double parts_of_a_copy)
    : slots_(std::make_shared<HostSlots>()), schedule_(parts_of_a_copy) {}

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
    if (!kept) kept = std::make_shared<KeptOnHost>(values, slots_);
    user.register_hook([kept](const at::Tensor&) { kept->fill(); });
  }
  if (!kept) return;
  // Of graphs that are gone.
  while (!recent_.empty() && recent_.front().kept.expired()) {
    recent_.pop_front();
  }
  while (!under_way_.empty() && under_way_.front().kept.expired()) {
    under_way_.pop_front();
  }
  recent_.push_back({part_, kept});
  under_way_.push_back({schedule_.start(part_ + 1), kept});
}

void HostOffload::end_part(const at::Tensor& output) {
  come_back(output, kOffloadPartsAhead);
  ++part_;
  settle(static_cast<double>(part_));
}

void HostOffload::end_forward(const at::Tensor& output) {
  settle(std::numeric_limits<double>::infinity());
  schedule_.restart();
  come_back(output, 0);
  recent_.clear();
}

void HostOffload::come_back(const at::Tensor& output, size_t parts) {
  if (!output.requires_grad()) return;
  for (; !recent_.empty() && recent_.front().part + parts <= part_;
       recent_.pop_front()) {
    output.register_hook([weak = recent_.front().kept](const at::Tensor&) {
      if (const auto kept = weak.lock()) kept->start_return();
    });
  }
}

void HostOffload::settle(double end) {
  while (!under_way_.empty() && under_way_.front().end <= end) {
    if (const auto kept = under_way_.front().kept.lock()) kept->settle();
    under_way_.pop_front();
  }
}

int64_t HostOffload::host_bytes() const { return slots_->num_bytes(); }

}  // namespace tessera
