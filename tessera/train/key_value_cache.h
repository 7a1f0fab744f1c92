// What a model remembers of the tokens that it has seen: the keys and values of
// each attention. One more token then costs the work of one, not of all.
//
//   KeyValueCache cache(1024);                 // tokens at most
//   model.extend(prompt, cache);               // [1, 20]
//   model.extend(next, cache);                 // [1, 1], sees all 21
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera::train {

/// Of one attention, for B sequences of N tokens: [B, K, N, D] each.
struct KeyValues {
  at::Tensor keys, values;
};

/// The part of one attention.
class LayerCache {
 public:
  explicit LayerCache(int64_t capacity) : capacity_(capacity) {}

  /// Adds those of new tokens. Returns those of all tokens so far, as views.
  /// Errors: InvalidArgument for more tokens than the capacity.
  KeyValues append(const KeyValues& added);

  [[nodiscard]] int64_t length() const { return length_; }
  void clear() { length_ = 0; }

 private:
  int64_t capacity_;
  int64_t length_ = 0;
  KeyValues all_;  // of `capacity_` tokens; undefined at first
};

class KeyValueCache {
 public:
  /// capacity: tokens of a sequence.
  explicit KeyValueCache(int64_t capacity) : capacity_(capacity) {}

  /// The tokens seen so far.
  [[nodiscard]] int64_t length() const;

  /// That of the attention number `index`; a model asks for 0, 1, 2, ...
  [[nodiscard]] LayerCache& layer(size_t index);

  /// Forgets all tokens.
  void clear();

 private:
  int64_t capacity_;
  std::vector<LayerCache> layers_;
};

}  // namespace tessera::train
