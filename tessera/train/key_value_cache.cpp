#include "tessera/train/key_value_cache.h"

#include <ATen/ops/empty.h>

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

/// Room for `capacity` tokens of sequences like these.
at::Tensor room_for(const at::Tensor& like, int64_t capacity) {
  return at::empty({like.size(0), like.size(1), capacity, like.size(3)},
                   like.options());
}

at::Tensor write(const at::Tensor& all, const at::Tensor& added,
                 int64_t length) {
  all.narrow(2, length, added.size(2)).copy_(added);
  return all.narrow(2, 0, length + added.size(2));
}

}  // namespace

KeyValues LayerCache::append(const KeyValues& added) {
  const int64_t count = added.keys.size(2);
  tessera::require<InvalidArgument>(length_ + count <= capacity_, [&] {
    return str("KeyValueCache: ", length_, " tokens and ", count,
               " more, but there is room for ", capacity_, ".");
  });
  if (!all_.keys.defined()) {
    all_ = {room_for(added.keys, capacity_), room_for(added.values, capacity_)};
  }
  KeyValues seen = {write(all_.keys, added.keys, length_),
                    write(all_.values, added.values, length_)};
  length_ += count;
  return seen;
}

int64_t KeyValueCache::length() const {
  return layers_.empty() ? 0 : layers_.front().length();
}

LayerCache& KeyValueCache::layer(size_t index) {
  while (layers_.size() <= index) layers_.emplace_back(capacity_);
  return layers_[index];
}

void KeyValueCache::clear() {
  for (LayerCache& layer : layers_) layer.clear();
}

}  // namespace tessera::train
