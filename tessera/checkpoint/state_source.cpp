#include "tessera/checkpoint/state_source.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <memory>
#include <utility>

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

at::Tensor plain(const at::Tensor& tensor) {
  return tensor.detach().resolve_conj().resolve_neg();
}

HostBytes host_bytes(const at::Tensor& elements) {
  return {{static_cast<const std::byte*>(elements.const_data_ptr()),
           elements.nbytes()},
          std::make_shared<at::Tensor>(elements)};
}

// Bytes on a device. Threads fetch them on the stream that they are given.
BoxBytes device_bytes(const at::Tensor& bytes, const c10::Stream& stream) {
  return {bytes.nbytes(), [bytes, stream](uint64_t begin, uint64_t size) {
            const StreamScope scope(stream);
            const auto count = static_cast<int64_t>(size);
            const at::Tensor piece = at::empty(
                {count}, at::TensorOptions().dtype(at::kByte).pinned_memory(
                             bytes.is_cuda()));
            piece.copy_(bytes.narrow(0, static_cast<int64_t>(begin), count));
            return host_bytes(piece);
          }};
}

c10::Stream stream_of(const std::map<std::string, StateTensor>& tensors) {
  for (const auto& [key, tensor] : tensors) {
    if (!tensor.local.is_cpu()) return current_stream(tensor.local.device());
  }
  return current_stream(c10::kCPU);
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
  for (const auto& [name, part] : state.parts()) {
    if (auto peers = part->peers()) return *std::move(peers);
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
      .box =
          [this, stream = stream_of(tensors_)](const std::string& key,
                                               const Box& box) {
            const StreamScope scope(stream);
            const at::Tensor elements = box_of(key, box);
            return elements.is_cpu()
                       ? in_host_memory(host_bytes(elements))
                       : device_bytes(elements.view(at::kByte), stream);
          }};
}

// Its elements, 1-D, where the tensor is.
at::Tensor StateSource::box_of(const std::string& key, const Box& box) const {
  const StateTensor& tensor = tensors_.at(key);
  const auto at = std::ranges::find(tensor.boxes, box);
  const auto index = static_cast<size_t>(at - tensor.boxes.begin());
  return plain(tensor.local)
      .contiguous()
      .view({-1})
      .narrow(0, begin_of(tensor, index), box.numel());
}

void StateSource::snapshot(const std::vector<WriteItem>& items,
                           HostCopy& memory) {
  std::map<std::string, StateTensor> written;
  for (const WriteItem& item : items) {
    if (!item.is_value) written.insert(*tensors_.find(item.key));
  }
  std::vector<at::Tensor> sources;
  for (const auto& [key, tensor] : written) {
    sources.push_back(plain(tensor.local));
  }
  const std::vector<at::Tensor> copies = memory.begin(sources);
  size_t next = 0;
  for (auto& [key, tensor] : written) tensor.local = copies[next++];
  tensors_ = std::move(written);
}

}  // namespace tessera::checkpoint
