#include "tessera/comm/host_link.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "tessera/base/error.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

// What the rings of one rank in one communicator take together, at most.
constexpr size_t kRingBytes = 16 << 20;
constexpr size_t kLargestRing = 4 << 20;
constexpr size_t kSmallestRing = 64 << 10;
// How soon an abort or a lost peer is noticed.
constexpr std::chrono::milliseconds kLook{20};

size_t ring_capacity(int size) {
  const size_t share = kRingBytes / std::max(size - 1, 1);
  return std::clamp(std::bit_floor(share), kSmallestRing, kLargestRing);
}

ByteRing ring_at(const SharedMemory& memory, int writer, size_t capacity) {
  return {memory.data() + writer * ByteRing::memory_for(capacity), capacity};
}

}  // namespace

HostLink::HostLink() : bell_(sizeof(Doorbell)) {}

HostLink::~HostLink() {
  bell().close();
  for (const auto& channel : channels_) channel->drop_messages();
}

HostOffer HostLink::offer(int size) const {
  HostOffer offer;
  offer.capacity_ = ring_capacity(size);
  offer.own_.emplace(size * ByteRing::memory_for(offer.capacity_));
  offer.text_ = bell_.address() + ' ' + offer.own_->address();
  return offer;
}

std::string HostLink::reach(HostOffer& offer,
                            const std::vector<std::string>& texts,
                            int self) const {
  offer.self_ = self;
  offer.peers_.clear();
  std::string reached;
  for (int rank = 0; rank < static_cast<int>(texts.size()); ++rank) {
    const size_t space = texts[rank].find(' ');
    std::optional<HostOffer::Peer> peer;
    if (rank != self && offer.own_ && space != std::string::npos) {
      auto bell = SharedMemory::open(texts[rank].substr(0, space));
      auto rings = SharedMemory::open(texts[rank].substr(space + 1));
      if (bell && rings && rings->size() == offer.own_->size()) {
        peer.emplace(std::move(*rings), std::move(*bell));
      }
    }
    reached += peer ? 'y' : 'n';
    offer.peers_.push_back(std::move(peer));
  }
  return reached;
}

HostChannels HostLink::connect(HostOffer offer,
                               const std::vector<std::string>& reached) {
  HostChannels channels(offer.peers_.size());
  if (!offer.own_) return channels;
  offer.own_->close_door();
  const auto own = std::make_shared<SharedMemory>(std::move(*offer.own_));
  for (size_t rank = 0; rank < channels.size(); ++rank) {
    auto& peer = offer.peers_[rank];
    if (!peer || reached[rank][offer.self_] != 'y') continue;
    const auto incoming =
        ring_at(*own, static_cast<int>(rank), offer.capacity_);
    const auto outgoing = ring_at(peer->rings, offer.self_, offer.capacity_);
    channels[rank] = std::make_shared<HostChannel>(
        static_cast<int>(rank), incoming, outgoing, own, std::move(peer->rings),
        std::move(peer->bell));
    const std::lock_guard lock(mutex_);
    channels_.push_back(channels[rank]);
  }
  return channels;
}

void HostLink::send(HostChannel& channel, Message message) {
  const std::lock_guard lock(mutex_);
  channel.send(std::move(message));
}

void HostLink::receive(HostChannel& channel, Message message) {
  const std::lock_guard lock(mutex_);
  channel.receive(std::move(message));
}

bool HostLink::advance() {
  const std::lock_guard lock(mutex_);
  bool moved = false;
  for (const auto& channel : channels_) {
    if (channel->has_messages() && channel->advance()) moved = true;
  }
  return moved;
}

void HostLink::wait(const MessageCount& count,
                    std::chrono::milliseconds timeout) {
  const auto start = Clock::now();
  while (count > 0) {
    if (aborted_) throw CommError("the wait was aborted");
    const uint32_t seen = bell().count();
    if (advance()) continue;
    bell().sleep(seen, kLook);
    if (bell().count() != seen) continue;
    const auto lost = lost_peer();
    if (lost && !advance()) {
      throw CommError(str("rank ", *lost, " of the group is gone"));
    }
    if (Clock::now() - start > timeout) {
      throw CommError(str("timed out after ", timeout.count(), " ms"));
    }
  }
}

std::optional<int> HostLink::lost_peer() {
  const std::lock_guard lock(mutex_);
  for (const auto& channel : channels_) {
    if (channel->has_messages() && channel->peer_is_gone()) {
      return channel->peer();
    }
  }
  return std::nullopt;
}

void HostLink::abort() noexcept {
  aborted_ = true;
  bell().close();
  bell().ring();
}

Doorbell& HostLink::bell() const {
  return *reinterpret_cast<Doorbell*>(bell_.data());
}

}  // namespace tessera
