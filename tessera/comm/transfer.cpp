#include "tessera/comm/transfer.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/routes.h"

namespace tessera {

Transfer::Transfer(TransferRegistry& registry,
                   std::shared_ptr<const Routes> routes)
    : registry_(registry),
      routes_(std::move(routes)),
      in_shared_memory_(std::make_shared<MessageCount>(0)) {
  registry_.add(*this);
}

Transfer::~Transfer() { registry_.remove(*this); }

HostChannel* Transfer::channel_to(int peer) const {
  return routes_->channels.empty() ? nullptr : routes_->channels[peer].get();
}

Message Transfer::message_of(const at::Tensor& tensor, int tag) {
  ++*in_shared_memory_;
  return {.data = static_cast<std::byte*>(tensor.mutable_data_ptr()),
          .bytes = tensor.nbytes(),
          .tag = static_cast<uint64_t>(tag),
          .memory = std::make_shared<at::Tensor>(tensor),
          .count = in_shared_memory_};
}

void Transfer::send(const at::Tensor& tensor, int peer, int tag) {
  if (tensor.numel() == 0) return;
  if (HostChannel* channel = channel_to(peer)) {
    routes_->link->send(*channel, message_of(tensor, tag));
    return;
  }
  std::vector<at::Tensor> tensors = {tensor};
  keep(routes_->backend->send(tensors, peer, tag));
}

void Transfer::receive(const at::Tensor& tensor, int peer, int tag) {
  if (tensor.numel() == 0) return;
  if (HostChannel* channel = channel_to(peer)) {
    routes_->link->receive(*channel, message_of(tensor, tag));
    return;
  }
  std::vector<at::Tensor> tensors = {tensor};
  keep(routes_->backend->recv(tensors, peer, tag));
}

void Transfer::receive_from_any(const at::Tensor& tensor, int tag) {
  std::vector<at::Tensor> tensors = {tensor};
  keep(routes_->backend->recvAnysource(tensors, tag));
}

void Transfer::keep(c10::intrusive_ptr<c10d::Work> work) {
  const std::lock_guard lock(mutex_);
  if (aborted_) work->abort();
  works_.push_back(std::move(work));
}

void Transfer::wait(std::chrono::milliseconds timeout) {
  if (routes_->link) routes_->link->wait(*in_shared_memory_, timeout);
  for (const auto& work : works_) {
    if (!work->wait(timeout)) throw CommError("the wait was aborted");
    const c10d::OpType kind = work->retrieveOpType();
    if (kind == c10d::OpType::RECV || kind == c10d::OpType::RECVANYSOURCE) {
      source_ = work->sourceRank();
    }
  }
  const std::lock_guard lock(mutex_);
  works_.clear();
}

void Transfer::abort() noexcept {
  const std::lock_guard lock(mutex_);
  aborted_ = true;
  for (const auto& work : works_) work->abort();
}

void TransferRegistry::add(Transfer& transfer) {
  const std::lock_guard lock(mutex_);
  transfers_.insert(&transfer);
  if (aborted_) transfer.abort();
}

void TransferRegistry::remove(Transfer& transfer) {
  const std::lock_guard lock(mutex_);
  transfers_.erase(&transfer);
}

void TransferRegistry::abort_all() noexcept {
  const std::lock_guard lock(mutex_);
  aborted_ = true;
  for (Transfer* transfer : transfers_) transfer->abort();
}

}  // namespace tessera
