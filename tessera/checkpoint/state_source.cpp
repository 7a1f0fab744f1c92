#include "tessera/checkpoint/state_source.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <optional>

#include "tessera/base/environment.h"
#include "tessera/base/error.h"
#include "tessera/checkpoint/item.h"
#include "tessera/checkpoint/torch_dtype.h"
#include "tessera/comm/communicator.h"
#include "tessera/device/stream.h"
#include "tessera/tensor/spread.h"

namespace tessera::checkpoint {
namespace {

Path with_name(const std::string& name, const Path& path) {
  Path whole{name};
  whole.insert(whole.end(), path.begin(), path.end());
  return whole;
}

// Two different values have different items; long ones are not sent around.
std::string digest_of(const std::string& item) {
  constexpr size_t kMostSent = 2048;
  if (item.size() <= kMostSent) return item;
  uint64_t hash = 14695981039346656037U;  // FNV-1a
  for (const char byte : item) {
    hash = (hash ^ static_cast<uint8_t>(byte)) * 1099511628211U;
  }
  return str(item.size(), " ", hash);
}

at::Tensor host_bytes_of(const StateTensor& tensor) {
  return tensor.local.detach()
      .to(at::kCPU)
      .resolve_conj()
      .resolve_neg()
      .contiguous();
}

// Where box `index` of a tensor's part begins, in elements.
int64_t begin_of(const StateTensor& tensor, size_t index) {
  int64_t begin = 0;
  for (size_t i = 0; i < index; ++i) begin += tensor.boxes[i].numel();
  return begin;
}

}  // namespace

Peers peers_of(const State& state, const World& world) {
  if (world.defined()) {
    return {world.rank(), world.size(), [world](std::string_view bytes) {
              return world.exchange("checkpoint", bytes);
            }};
  }
  for (const auto& [name, part] : state.parts()) {
    if (const auto communicator = part->communicator()) {
      return {communicator->rank(), communicator->size(),
              [communicator](std::string_view bytes) {
                return communicator->exchange(bytes, {.phase = "checkpoint"});
              }};
    }
  }
  require<InvalidArgument>(
      environment::launch().world_size.value_or(1) == 1, [] {
        return str(
            "checkpoint: this is one of several ranks, and "
            "the state has no shards that say which others "
            "take part. Give {.world = world}.");
      });
  return {};
}

StateSource::StateSource(const State& state) {
  for (const auto& [name, part] : state.parts()) {
    for (StateEntry& entry : part->state_dict()) {
      const Path path = with_name(name, entry.path);
      const std::string key = key_of(path);
      if (auto* tensor = std::get_if<StateTensor>(&entry.leaf)) {
        offer_.tensors.push_back({key, path,
                                  dtype_of(tensor->local.scalar_type()),
                                  tensor->sizes, tensor->boxes});
        tensors_.insert_or_assign(key, std::move(*tensor));
      } else {
        const Value& value = std::get<Value>(entry.leaf);
        const std::string item = write_value_item(value);
        offer_.values.push_back({key, path, value.show(), digest_of(item)});
        value_items_.insert_or_assign(key, item);
      }
    }
  }
}

WriteSource StateSource::source() const {
  return {
      .value = [this](const std::string& key) { return value_items_.at(key); },
      .box = [this](const std::string& key,
                    const Box& box) { return box_bytes(key, box); }};
}

BoxBytes StateSource::box_bytes(const std::string& key, const Box& box) const {
  const StateTensor& tensor = tensors_.at(key);
  const auto at = std::ranges::find(tensor.boxes, box);
  const auto index = static_cast<size_t>(at - tensor.boxes.begin());
  const auto keep = std::make_shared<at::Tensor>(host_bytes_of(tensor));
  const auto width = static_cast<size_t>(keep->element_size());
  return {{static_cast<const std::byte*>(keep->const_data_ptr()) +
               static_cast<size_t>(begin_of(tensor, index)) * width,
           static_cast<size_t>(box.numel()) * width},
          keep};
}

void StateSource::snapshot(const std::vector<WriteItem>& items,
                           std::map<std::string, at::Tensor>& buffers) {
  std::map<std::string, StateTensor> copies;
  std::optional<c10::Stream> device;
  for (const WriteItem& item : items) {
    if (item.is_value || copies.contains(item.key)) continue;
    StateTensor copy = tensors_.at(item.key);
    const at::Tensor source = copy.local.detach().resolve_conj().resolve_neg();
    at::Tensor& buffer = buffers[item.key];
    if (!buffer.defined() || buffer.sizes() != source.sizes() ||
        buffer.scalar_type() != source.scalar_type()) {
      buffer = at::empty(source.sizes(), at::TensorOptions()
                                             .dtype(source.scalar_type())
                                             .pinned_memory(source.is_cuda()));
    }
    buffer.copy_(source, source.is_cuda());
    if (source.is_cuda()) device = current_stream(source.device());
    copy.local = buffer;
    copies.emplace(item.key, std::move(copy));
  }
  if (device) device->synchronize();
  tensors_ = std::move(copies);
}

}  // namespace tessera::checkpoint
