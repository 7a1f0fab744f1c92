#include "tessera/parallel/bucket.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/device/stream.h"

namespace tessera {

using at::Tensor;

namespace {

/// Its memory is not given away before the current stream's work is done.
void note_use_here(const Tensor& tensor) {
  if (!tensor.is_cpu()) tensor.record_stream(current_stream(tensor.device()));
}

}  // namespace

Bucket::Bucket(std::vector<size_t> members, std::vector<Tensor> parameters,
               GradientMemory memory)
    : members_(std::move(members)),
      parameters_(std::move(parameters)),
      memory_(memory) {
  for (const Tensor& parameter : parameters_) {
    offsets_.push_back(numel_);
    numel_ += parameter.numel();
  }
}

// In the parameter's own layout, so that optimizers run over both alike.
Tensor Bucket::view_of(size_t member) const {
  const Tensor& parameter = parameters_[member];
  const Tensor flat = buffer_.narrow(0, offsets_[member], parameter.numel());
  return parameter.is_non_overlapping_and_dense()
             ? flat.as_strided(parameter.sizes(), parameter.strides())
             : flat.view(parameter.sizes());
}

void Bucket::begin_pass(size_t num_expected) {
  num_missing_ = num_expected;
  streams_.clear();
}

void Bucket::note_gradient() {
  const auto stream = current_stream(parameters_[0].device());
  if (std::ranges::find(streams_, stream) == streams_.end()) {
    streams_.push_back(stream);
  }
  --num_missing_;
}

void Bucket::allocate() {
  if (buffer_.defined()) return;
  buffer_ = at::empty({numel_}, parameters_[0].options());
}

void Bucket::copy_in() {
  std::vector<Tensor> places;
  std::vector<Tensor> values;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& gradient = parameters_[i].grad();
    const Tensor place = view_of(i);
    if (!gradient.defined()) {
      place.zero_();
      continue;
    }
    require<Unsupported>(
        !gradient.is_sparse() && !gradient.requires_grad(), [&] {
          return str("DistributedDataParallel: the gradient of a parameter of ",
                     parameters_[i].sizes(), " is ",
                     gradient.is_sparse() ? "sparse; use layers with dense ones"
                                          : "to be differentiated again; call "
                                            "backward without create_graph",
                     ".");
        });
    if (gradient.data_ptr() == place.data_ptr()) continue;
    places.push_back(place);
    values.push_back(gradient);
  }
  if (!places.empty()) at::_foreach_copy_(places, values);
}

void Bucket::start(size_t index, bool is_last, const HookCall& call) {
  const at::NoGradGuard no_grad;
  const auto here = current_stream(parameters_[0].device());
  for (const auto& stream : streams_) {
    if (stream == here) continue;
    StreamEvent behind_gradients;
    behind_gradients.record(stream);
    behind_gradients.block(here);
  }
  allocate();
  copy_in();
  hand_over(index, is_last, call);
}

void Bucket::start_with_zeros(size_t index, bool is_last,
                              const HookCall& call) {
  const at::NoGradGuard no_grad;
  allocate();
  buffer_.zero_();
  hand_over(index, is_last, call);
}

void Bucket::hand_over(size_t index, bool is_last, const HookCall& call) {
  std::vector<Tensor> gradients;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    gradients.push_back(view_of(i));
  }
  reduced_ = call.hook(GradientBucket(index, is_last, call.divisor, buffer_,
                                      std::move(gradients), parameters_));
  require<InvalidState>(reduced_ != nullptr, [] {
    return str(
        "DistributedDataParallel: the communication hook returned no "
        "function that gives the result.");
  });
}

Tensor Bucket::wait() {
  Tensor result = std::exchange(reduced_, nullptr)();
  require<InvalidState>(result.defined() && result.numel() == numel_, [&] {
    return str("DistributedDataParallel: the communication hook's result has ",
               result.defined() ? result.numel() : 0, " elements; its bucket ",
               "has ", numel_, ".");
  });
  return result;
}

void Bucket::write_gradient(size_t member) {
  Tensor& gradient = parameters_[member].mutable_grad();
  const Tensor place = view_of(member);
  if (memory_ == GradientMemory::bucket) {
    // No view to autograd, which optimizers' zero_grad would not take.
    if (!gradient.defined() || gradient.data_ptr() != place.data_ptr()) {
      gradient = place.variable_data();
    }
  } else if (gradient.defined()) {
    gradient.copy_(place);
  } else {
    gradient = place.clone();
  }
}

void Bucket::finish(const std::vector<bool>& is_used) {
  const at::NoGradGuard no_grad;
  const Tensor result = wait();
  // Their memory is of the stream of gradients, and this may be another.
  note_use_here(buffer_);
  note_use_here(result);
  if (result.data_ptr() != buffer_.data_ptr()) {
    buffer_.copy_(result.view({-1}));
  }
  for (size_t i = 0; i < members_.size(); ++i) {
    if (is_used[members_[i]]) write_gradient(i);
  }
  if (memory_ == GradientMemory::own) buffer_.reset();
}

void Bucket::abandon() {
  reduced_ = nullptr;
  if (memory_ == GradientMemory::own) buffer_.reset();
}

}  // namespace tessera
