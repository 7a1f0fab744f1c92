#include "tessera/comm/host_channel.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace tessera {
namespace {

bool process_has_ended(int process, pid_t pid) {
  if (process < 0) return ::kill(pid, 0) != 0 && errno == ESRCH;
  pollfd state{process, POLLIN, 0};
  return ::poll(&state, 1, 0) > 0;
}

}  // namespace

HostChannel::HostChannel(int peer, ByteRing incoming, ByteRing outgoing,
                         std::shared_ptr<const SharedMemory> own,
                         SharedMemory theirs, SharedMemory their_bell)
    : peer_(peer),
      own_(std::move(own)),
      theirs_(std::move(theirs)),
      their_bell_(std::move(their_bell)),
      process_(
          static_cast<int>(::syscall(SYS_pidfd_open, their_bell_.maker(), 0))),
      incoming_(incoming),
      outgoing_(outgoing) {}

HostChannel::~HostChannel() {
  if (process_ >= 0) ::close(process_);
}

void HostChannel::send(Message message) {
  outgoing_messages_.push_back(std::move(message));
  if (push()) their_bell().ring();
}

void HostChannel::receive(Message message) {
  incoming_messages_.push_back(std::move(message));
}

bool HostChannel::advance() {
  const bool pushed = push();
  const bool pulled = pull();
  if (pushed || pulled) their_bell().ring();
  return pushed || pulled;
}

bool HostChannel::push() {
  bool moved = false;
  while (!outgoing_messages_.empty()) {
    const Message& message = outgoing_messages_.front();
    if (sent_ < sizeof(Header)) {
      const Header header{message.tag, message.bytes};
      sent_ +=
          outgoing_.write(reinterpret_cast<const std::byte*>(&header) + sent_,
                          sizeof(Header) - sent_);
      if (sent_ < sizeof(Header)) return moved;
      moved = true;
    }
    const size_t before = sent_ - sizeof(Header);
    const size_t taken =
        outgoing_.write(message.data + before, message.bytes - before);
    sent_ += taken;
    moved = moved || taken > 0;
    if (before + taken < message.bytes) return moved;
    --*message.count;
    outgoing_messages_.pop_front();
    sent_ = 0;
  }
  return moved;
}

bool HostChannel::read_header() {
  if (has_header_) return true;
  if (incoming_.readable() < sizeof(Header)) return false;
  incoming_.read(reinterpret_cast<std::byte*>(&header_), sizeof(Header));
  has_header_ = true;
  return true;
}

bool HostChannel::pull() {
  bool moved = false;
  while (!incoming_messages_.empty() && read_header()) {
    const Message& message = incoming_messages_.front();
    if (header_.tag != message.tag || header_.bytes != message.bytes) {
      return moved;  // out of step
    }
    const size_t given =
        incoming_.read(message.data + received_, message.bytes - received_);
    received_ += given;
    moved = moved || given > 0;
    if (received_ < message.bytes) return moved;
    --*message.count;
    incoming_messages_.pop_front();
    received_ = 0;
    has_header_ = false;
  }
  return moved;
}

bool HostChannel::peer_is_gone() const {
  return their_bell().closed() ||
         process_has_ended(process_, their_bell_.maker());
}

void HostChannel::drop_messages() noexcept {
  outgoing_messages_.clear();
  incoming_messages_.clear();
}

Doorbell& HostChannel::their_bell() const {
  return *reinterpret_cast<Doorbell*>(their_bell_.data());
}

}  // namespace tessera
