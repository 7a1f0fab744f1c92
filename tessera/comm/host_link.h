// This rank's messages to and from the ranks of the same machine.
//
// A rank has one link; each communicator adds its channels to it. Setting one
// up takes two exchanges among the communicator's ranks:
//
//   HostOffer offer = link.offer(size);
//   texts = exchange(offer.text());              // who lives where
//   reached = exchange(link.reach(offer, texts, self));
//   channels = link.connect(std::move(offer), reached);
//
// Two ranks have a channel when each can open the other's memory. While a rank
// waits for one message it looks after all of its channels, so that no two
// ranks wait for each other's deferred messages. Torch-free.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tessera/comm/host_channel.h"
#include "tessera/comm/shared_memory.h"

namespace tessera {

/// What one rank lays open for one communicator.
class HostOffer {
 public:
  /// Says where this rank's memory is; empty when it offers none.
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  friend class HostLink;

  struct Peer {
    SharedMemory rings;
    SharedMemory bell;
  };

  std::string text_;
  std::optional<SharedMemory> own_;
  std::vector<std::optional<Peer>> peers_;
  size_t capacity_ = 0;
  int self_ = 0;
};

/// One rank's channels in one communicator, by peer; empty where there is none.
using HostChannels = std::vector<std::shared_ptr<HostChannel>>;

class HostLink {
 public:
  HostLink();
  /// Tells the neighbours that this rank is gone.
  ~HostLink();
  HostLink(const HostLink&) = delete;
  HostLink& operator=(const HostLink&) = delete;

  /// For a communicator of `size` ranks.
  [[nodiscard]] HostOffer offer(int size) const;
  /// Opens what the ranks offered. Returns a letter for each rank: 'y' where it
  /// could.
  [[nodiscard]] std::string reach(HostOffer& offer,
                                  const std::vector<std::string>& texts,
                                  int self) const;
  /// `reached[rank]` is what that rank's `reach` returned.
  [[nodiscard]] HostChannels connect(HostOffer offer,
                                     const std::vector<std::string>& reached);

  void send(HostChannel& channel, Message message);
  void receive(HostChannel& channel, Message message);

  /// Moves what can be moved now, on all channels.
  bool advance();

  /// Returns when `count` is zero.
  /// Errors: CommError when a peer has gone, after `timeout`, or after `abort`.
  void wait(const MessageCount& count, std::chrono::milliseconds timeout);

  /// Ends all waits, now and later. From any thread.
  void abort() noexcept;

 private:
  [[nodiscard]] Doorbell& bell() const;
  [[nodiscard]] std::optional<int> lost_peer();

  SharedMemory bell_;
  std::atomic<bool> aborted_ = false;
  std::mutex mutex_;
  std::vector<std::shared_ptr<HostChannel>> channels_;
};

}  // namespace tessera
