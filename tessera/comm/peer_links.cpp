#include "tessera/comm/peer_links.h"

#include <utility>

#include "tessera/base/log.h"

namespace tessera {

std::shared_ptr<PeerLink> PeerLinks::connect(const PeerLink::Place& place,
                                             const PeerLink::Exchange& exchange,
                                             const std::string& what) {
  std::string why;
  auto link = PeerLink::connect(place, exchange, why);
  if (!link) {
    if (place.rank == 0) {
      log_warning(what, " goes by NCCL, not by copy engines: ", why, ".");
    }
    return nullptr;
  }
  const std::lock_guard lock(mutex_);
  links_.push_back(link);
  return link;
}

std::vector<std::shared_ptr<PeerLink>> PeerLinks::all() const {
  const std::lock_guard lock(mutex_);
  return links_;
}

std::optional<CollectiveEntry> PeerLinks::overdue(
    std::chrono::milliseconds patience) const {
  for (const auto& link : all()) {
    if (auto entry = link->overdue(patience)) return entry;
  }
  return std::nullopt;
}

void PeerLinks::before_replay(const c10::Stream& stream) const {
  for (const auto& link : all()) link->before_replay(stream);
}

void PeerLinks::after_replay(const c10::Stream& stream) const {
  for (const auto& link : all()) link->after_replay(stream);
}

void PeerLinks::leak() const {
  auto links = all();
  if (links.empty()) return;
  static_cast<void>(
      new std::vector<std::shared_ptr<PeerLink>>(std::move(links)));
}

void PeerLinks::stop() const noexcept {
  for (const auto& link : all()) link->stop();
}

void PeerLinks::drain() const noexcept {
  for (const auto& link : all()) link->drain();
}

}  // namespace tessera
