#include "tessera/optim/parameter_broadcast.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <map>
#include <tuple>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/tensor/spread.h"

namespace tessera {
namespace {

// A message of this size is as fast alone as with others.
constexpr int64_t kInPlaceBytes = int64_t{1} << 20;
constexpr int64_t kMostPackedBytes = int64_t{32} << 20;
// Where a view begins: as the allocators of LibTorch align.
constexpr int64_t kAlignment = 64;

int64_t num_bytes_of(const at::Tensor& parameter) {
  return parameter.numel() * parameter.element_size();
}

at::Tensor values_of(const at::Tensor& parameter) {
  return local(parameter).detach();
}

// A former view of a bucket would keep all of it.
void leave_bucket(at::Tensor parameter) {
  const at::Tensor values = values_of(parameter);
  if (values.storage().nbytes() <=
      static_cast<size_t>(num_bytes_of(parameter))) {
    return;
  }
  parameter.set_data(values.clone());
}

at::Tensor view_like(const at::Tensor& parameter, const at::Tensor& bucket,
                     int64_t offset) {
  if (parameter.is_non_overlapping_and_dense()) {
    return bucket.as_strided(parameter.sizes(), parameter.strides(), offset);
  }
  return bucket.narrow(0, offset, parameter.numel()).view(parameter.sizes());
}

}  // namespace

ParameterBroadcast::ParameterBroadcast(
    distributed::ProcessGroup group,
    const std::vector<OwnedParameter>& parameters, BucketView view)
    : group_(std::move(group)) {
  const at::NoGradGuard no_grad;
  plan(parameters, view);
  if (view == BucketView::off) return;
  for (const OwnedParameter& parameter : parameters) {
    if (!parameter.trainable) leave_bucket(parameter.tensor);
  }
  for (Message& message : messages_) move_to_bucket(message);
}

void ParameterBroadcast::plan(const std::vector<OwnedParameter>& parameters,
                              BucketView view) {
  using Key =
      std::tuple<c10::DeviceType, c10::DeviceIndex, c10::ScalarType, int>;
  std::map<Key, size_t> open;
  for (const auto& [tensor, owner, trainable] : parameters) {
    if (!trainable || tensor.numel() == 0) continue;
    const int64_t num_bytes = num_bytes_of(tensor);
    if (view == BucketView::off && num_bytes >= kInPlaceBytes &&
        values_of(tensor).is_contiguous()) {
      Message& alone = messages_.emplace_back();
      alone.owner = owner;
      alone.parameters = {tensor};
      alone.in_place = true;
      continue;
    }
    const Key key{tensor.device().type(), tensor.device().index(),
                  tensor.scalar_type(), owner};
    const auto at = open.find(key);
    const bool joins =
        at != open.end() &&
        (view == BucketView::on ||
         messages_[at->second].num_bytes + num_bytes <= kMostPackedBytes);
    if (!joins) {
      open[key] = messages_.size();
      messages_.emplace_back().owner = owner;
    }
    Message& message = messages_[open[key]];
    message.parameters.push_back(tensor);
    message.num_bytes += num_bytes;
  }
}

void ParameterBroadcast::move_to_bucket(Message& message) const {
  const at::Tensor& first = message.parameters.front();
  const int64_t unit = kAlignment / first.element_size();
  int64_t numel = 0;
  for (const at::Tensor& parameter : message.parameters) {
    message.offsets.push_back(numel);
    numel += (parameter.numel() + unit - 1) / unit * unit;
  }
  message.bucket = at::zeros({numel}, first.options().requires_grad(false));
  for (size_t i = 0; i < message.parameters.size(); ++i) {
    at::Tensor& parameter = message.parameters[i];
    const at::Tensor view =
        view_like(parameter, message.bucket, message.offsets[i]);
    view.copy_(parameter.detach());
    parameter.set_data(view);
  }
}

bool ParameterBroadcast::is_owner(const Message& message) const {
  return group_.rank() == message.owner;
}

void ParameterBroadcast::check_in_bucket(const Message& message) const {
  for (const at::Tensor& parameter : message.parameters) {
    require<InvalidState>(
        parameter.storage().is_alias_of(message.bucket.storage()), [&] {
          return str(
              "ZeroRedundancyOptimizer: a parameter of sizes ",
              parameter.sizes(),
              " lies outside of its bucket: its data was replaced since (by "
              "Module::to, set_data, ...), and would not be sent. Do that "
              "before the optimizer is made, or use BucketView::off.");
        });
  }
}

at::Tensor ParameterBroadcast::buffer_of(const Message& message) const {
  if (message.bucket.defined()) {
    check_in_bucket(message);
    return message.bucket;
  }
  const at::Tensor first = values_of(message.parameters.front());
  if (message.in_place) return first;
  int64_t numel = 0;
  for (const at::Tensor& parameter : message.parameters) {
    numel += parameter.numel();
  }
  const at::Tensor buffer = at::empty({numel}, first.options());
  if (!is_owner(message)) return buffer;
  int64_t offset = 0;
  for (const at::Tensor& parameter : message.parameters) {
    buffer.narrow(0, offset, parameter.numel())
        .view(parameter.sizes())
        .copy_(values_of(parameter));
    offset += parameter.numel();
  }
  return buffer;
}

void ParameterBroadcast::deliver(const Message& message,
                                 const at::Tensor& buffer) const {
  if (is_owner(message)) return;
  int64_t offset = 0;
  for (const at::Tensor& parameter : message.parameters) {
    if (message.in_place || message.bucket.defined()) {
      // What autograd saved of it holds other values now.
      parameter.unsafeGetTensorImpl()->bump_version();
      continue;
    }
    values_of(parameter).copy_(
        buffer.narrow(0, offset, parameter.numel()).view(parameter.sizes()));
    offset += parameter.numel();
  }
}

void ParameterBroadcast::run() const {
  if (group_.size() == 1) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> buffers;
  for (const Message& message : messages_) {
    buffers.push_back(buffer_of(message));
  }
  std::vector<distributed::Work> works;
  for (size_t i = 0; i < messages_.size(); ++i) {
    works.push_back(
        distributed::broadcast(buffers[i], messages_[i].owner, group_));
  }
  for (size_t i = 0; i < messages_.size(); ++i) {
    works[i].wait();
    deliver(messages_[i], buffers[i]);
  }
}

}  // namespace tessera
