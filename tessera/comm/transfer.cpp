#include "tessera/comm/transfer.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <utility>

#include "tessera/base/error.h"

namespace tessera {

Transfer::Transfer(TransferRegistry& registry) : registry_(registry) {
  registry_.add(*this);
}

Transfer::~Transfer() { registry_.remove(*this); }

void Transfer::send(c10d::Backend& backend, const at::Tensor& tensor, int peer,
                    int tag) {
  if (tensor.numel() == 0) return;
  std::vector<at::Tensor> tensors = {tensor};
  keep(backend.send(tensors, peer, tag));
}

void Transfer::receive(c10d::Backend& backend, const at::Tensor& tensor,
                       int peer, int tag) {
  if (tensor.numel() == 0) return;
  std::vector<at::Tensor> tensors = {tensor};
  keep(backend.recv(tensors, peer, tag));
}

void Transfer::keep(c10::intrusive_ptr<c10d::Work> work) {
  const std::lock_guard lock(mutex_);
  if (aborted_) work->abort();
  works_.push_back(std::move(work));
}

void Transfer::wait(std::chrono::milliseconds timeout) {
  for (const auto& work : works_) {
    if (!work->wait(timeout)) throw CommError("the wait was aborted");
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
