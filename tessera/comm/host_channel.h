// Messages between two ranks of one machine, in order, through a ring each way.
//
// A message goes on its way in pieces, whenever one side looks after its
// channel (`advance`); so neither side needs a thread, and a ring may be
// smaller than a message. The n-th message that one side sends is the n-th that
// the other receives, if their tags agree: ranks that fall out of step wait for
// each other and mix no data. Torch-free.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "tessera/comm/byte_ring.h"
#include "tessera/comm/doorbell.h"
#include "tessera/comm/shared_memory.h"

namespace tessera {

/// Messages that somebody waits for.
using MessageCount = std::atomic<int64_t>;

struct Message {
  std::byte* data = nullptr;
  size_t bytes = 0;
  uint64_t tag = 0;
  std::shared_ptr<const void> memory;   // kept until the message has gone
  std::shared_ptr<MessageCount> count;  // one less when it has
};

class HostChannel {
 public:
  /// `incoming` lies in `own`, `outgoing` in `theirs`; `their_bell` wakes the
  /// peer.
  HostChannel(int peer, ByteRing incoming, ByteRing outgoing,
              std::shared_ptr<const SharedMemory> own, SharedMemory theirs,
              SharedMemory their_bell);
  ~HostChannel();
  HostChannel(const HostChannel&) = delete;
  HostChannel& operator=(const HostChannel&) = delete;

  void send(Message message);
  void receive(Message message);

  /// Moves what can be moved now; says whether anything was.
  bool advance();

  [[nodiscard]] bool has_messages() const {
    return !outgoing_messages_.empty() || !incoming_messages_.empty();
  }
  /// Whether the peer has left, or its process has ended.
  [[nodiscard]] bool peer_is_gone() const;
  [[nodiscard]] int peer() const { return peer_; }

  /// Forgets all messages.
  void drop_messages() noexcept;

 private:
  // Goes before the bytes of each message.
  struct Header {
    uint64_t tag = 0;
    uint64_t bytes = 0;
  };

  bool push();
  bool pull();
  [[nodiscard]] bool read_header();
  [[nodiscard]] Doorbell& their_bell() const;

  int peer_;
  std::shared_ptr<const SharedMemory> own_;
  SharedMemory theirs_;
  SharedMemory their_bell_;
  int process_ = -1;  // a pidfd
  ByteRing incoming_;
  ByteRing outgoing_;
  std::deque<Message> outgoing_messages_;
  std::deque<Message> incoming_messages_;
  size_t sent_ = 0;      // of the first outgoing message, its header included
  size_t received_ = 0;  // of the first incoming message
  bool has_header_ = false;
  Header header_;  // of the message that stands in the ring
};

}  // namespace tessera
