#include "tessera/comm/pending.h"

#include <utility>

namespace tessera {

Pending::Pending() = default;
Pending::Pending(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Pending::Pending(Pending&&) noexcept = default;

Pending& Pending::operator=(Pending&& other) noexcept {
  if (impl_ && impl_ != other.impl_) impl_->drain();
  impl_ = std::move(other.impl_);
  return *this;
}

Pending::~Pending() {
  if (impl_) impl_->drain();
}

void Pending::wait() {
  if (!impl_) return;
  const std::unique_ptr<Impl> impl = std::move(impl_);
  impl->wait();
}

}  // namespace tessera
