#include "tessera/parallel/distributed_data_parallel.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <set>
#include <string>

#include "tessera/base/error.h"
#include "tessera/device/capture.h"
#include "tessera/mesh/group_over.h"
#include "tessera/module/traversal.h"
#include "tessera/parallel/gradient_reducer.h"
#include "tessera/parallel/model_agreement.h"
#include "tessera/tensor/spread.h"

namespace tessera {

namespace {

using at::Tensor;

void check_parameter(const NamedTensor& parameter, c10::Device device) {
  const Tensor& tensor = parameter.tensor;
  const auto who = [&] {
    return str("DistributedDataParallel: '", parameter.name, "' ");
  };
  require<InvalidArgument>(!spread_of(tensor), [&] {
    return str(who(),
               "is sharded; name it in ignored_params, or shard the "
               "whole model over a mesh of two axes (HSDP) instead.");
  });
  require<InvalidArgument>(tensor.is_leaf(), [&] {
    return str(who(),
               "was computed by autograd (no leaf); register the tensor "
               "that is trained.");
  });
  require<InvalidState>(!tensor.is_meta(), [&] {
    return str(who(), "is on the meta device; materialize the model first.");
  });
  require<InvalidArgument>(tensor.device() == device, [&] {
    return str(who(), "is on ", tensor.device().str(),
               ", but the others are "
               "on ",
               device.str(), "; move the model there first.");
  });
}

/// Parameters that take part.
std::vector<NamedTensor> parameters_of(torch::nn::Module& module,
                                       const DataParallelOptions& options) {
  std::set<const c10::TensorImpl*> ignored;
  for (const Tensor& tensor : options.ignored_params) {
    ignored.insert(tensor.unsafeGetTensorImpl());
  }
  torch::nn::Module* const root = &module;
  std::vector<NamedTensor> parameters;
  for (const FoundParameter& found : find_parameters({&root, 1})) {
    if (ignored.contains(found.tensor.unsafeGetTensorImpl())) continue;
    parameters.push_back({found.name, found.tensor});
  }
  return parameters;
}

std::vector<NamedTensor> buffers_of(torch::nn::Module& module) {
  std::vector<NamedTensor> buffers;
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined()) buffers.push_back({item.key(), item.value()});
  }
  return buffers;
}

std::vector<NamedTensor> trained(const std::vector<NamedTensor>& parameters) {
  std::vector<NamedTensor> result;
  for (const NamedTensor& each : parameters) {
    if (each.tensor.requires_grad()) result.push_back(each);
  }
  require<InvalidArgument>(!result.empty(), [] {
    return str(
        "DistributedDataParallel: the model has no parameter that "
        "requires a gradient; such a model needs no wrapper.");
  });
  return result;
}

constexpr double kMostMib = 1 << 20;

/// What has to be the same on all ranks.
std::string described(const DataParallelOptions& options) {
  const auto number = [](auto choice) { return static_cast<int>(choice); };
  return str("bucket_cap_mib ", options.bucket_cap_mib, ", unused_parameters ",
             number(options.unused_parameters), ", static_graph ",
             number(options.static_graph), ", init_sync ",
             number(options.init_sync), ", buffer_sync ",
             number(options.buffer_sync));
}

void check_options(const DataParallelOptions& options) {
  require<InvalidArgument>(
      options.bucket_cap_mib > 0 && options.bucket_cap_mib <= kMostMib, [&] {
        return str("DistributedDataParallel: bucket_cap_mib is ",
                   options.bucket_cap_mib, "; give more than 0, up to ",
                   kMostMib, ".");
      });
}

}  // namespace

DataParallel::DataParallel(torch::nn::Module& module,
                           const DataParallelOptions& options)
    : group_(group_over(options.mesh, options.group, "DistributedDataParallel",
                        "ddp")),
      buffer_sync_(options.buffer_sync) {
  check_options(options);
  auto parameters = parameters_of(module, options);
  const auto to_reduce = trained(parameters);
  device_ = options.mesh.defined() ? options.mesh.device()
                                   : to_reduce[0].tensor.device();
  auto all = parameters;
  for (const NamedTensor& buffer : buffers_of(module)) all.push_back(buffer);
  for (const NamedTensor& each : all) check_parameter(each, device_);
  check_same_models(described(options), all, group_);
  parameters_ = tensors_of(parameters);
  buffers_ = tensors_of(buffers_of(module));
  if (options.init_sync == InitSync::broadcast) {
    broadcast_tensors(tensors_of(all), 0, group_);
  }
  reducer_ = std::make_shared<GradientReducer>(to_reduce, group_, options);
}

DataParallel::~DataParallel() = default;

NoSync DataParallel::no_sync() { return NoSync(*this); }

void DataParallel::set_comm_hook(CommHook hook) {
  reducer_->set_comm_hook(std::move(hook));
}

bool DataParallel::reduces_now() const {
  return syncs_ && c10::GradMode::is_enabled();
}

void DataParallel::send_buffers(int root) const {
  broadcast_tensors(buffers_, root, group_);
}

DataParallel::Step DataParallel::agree(const Step& mine) const {
  const auto most =
      most_of({mine.reduces ? 1 : 0, mine.sends_buffers ? 1 : 0, mine.root},
              device_, group_);
  return {most[0] > 0, most[1] > 0, most[2]};
}

void DataParallel::before_forward() {
  require<Unsupported>(!capturing(device_), [] {
    return str(
        "DistributedDataParallel cannot be part of a CUDA graph: its "
        "gradients come on streams of their own; use replicate or "
        "fully_shard for that.");
  });
  Step step = {.reduces = reduces_now(),
               .sends_buffers = syncs_ &&
                                buffer_sync_ == BufferSync::before_forward &&
                                !buffers_.empty(),
               .root = group_.rank()};
  if (session() != nullptr) {
    session()->note_step(*this);
    step = agree(step);
    if (session()->divisor() == JoinDivisor::active_ranks) {
      reducer_->set_divisor(session()->num_active());
    }
  } else {
    step.root = 0;
    reducer_->set_divisor(group_.size());
  }
  if (step.reduces) reducer_->prepare_forward();
  if (!syncs_) reducer_->note_no_sync();
  if (step.sends_buffers) send_buffers(step.root);
}

Tensor DataParallel::after_forward(const Tensor& output) const {
  return reduces_now() ? reducer_->mark_output(output) : output;
}

void DataParallel::shadow_step() {
  const Step step = agree({});
  if (step.reduces) reducer_->prepare_forward();
  if (step.sends_buffers) send_buffers(step.root);
  if (step.reduces) reducer_->shadow_backward();
}

void DataParallel::end_join(WasLast was_last) {
  const int mine = was_last == WasLast::yes ? group_.rank() : -1;
  const int root = agree({.root = mine}).root;
  std::vector<Tensor> all = parameters_;
  all.insert(all.end(), buffers_.begin(), buffers_.end());
  broadcast_tensors(all, root, group_);
}

}  // namespace tessera
