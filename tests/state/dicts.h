// What the tests of state dicts share: the model of tests/checkpoint at any
// number of ranks, and comparing dicts.
#pragma once

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tessera/state/get_state_dict.h"
#include "tessera/state/set_state_dict.h"
#include "tests/checkpoint/block.h"
#include "tests/support/temporary_folder.h"

namespace tessera {

using checkpoint::Block;
using checkpoint::Trained;

inline constexpr auto kDeadline = std::chrono::seconds(30);

inline StateDictOptions full() { return {.full_state_dict = true}; }

inline StateDictOptions full_on_host() {
  return {.full_state_dict = true, .cpu_offload = true};
}

inline StateDictOptions from_rank0() {
  return {.full_state_dict = true, .broadcast_from_rank0 = true};
}

inline Trained trained_on(const World& world, int seed) {
  Trained trained(world.size() == 1 ? World() : world, seed);
  trained.step(0);
  return trained;
}

// The model and optimizer of one process, after the same step.
inline Trained reference(int seed) {
  Trained trained({}, seed);
  trained.step(0);
  return trained;
}

inline bool same(const Leaf& a, const Leaf& b) {
  const auto* tensor = std::get_if<StateTensor>(&a);
  if (tensor == nullptr) return std::get<Value>(a) == std::get<Value>(b);
  const auto& other = std::get<StateTensor>(b);
  return tensor->sizes == other.sizes && tensor->boxes == other.boxes &&
         torch::equal(tensor->local.reshape(-1), other.local.reshape(-1));
}

// What is different between two dicts, or "".
inline std::string difference(const StateDict& a, const StateDict& b) {
  if (a.size() != b.size()) return str(a.size(), " and ", b.size(), " keys");
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].path != b[i].path) return "other path: " + key_of(a[i].path);
    if (!same(a[i].leaf, b[i].leaf)) return "other value: " + key_of(a[i].path);
  }
  return "";
}

inline StateDict copy_of(StateDict dict) {
  for (StateEntry& entry : dict) {
    if (auto* tensor = std::get_if<StateTensor>(&entry.leaf)) {
      tensor->local = tensor->local.clone();
    }
  }
  return dict;
}

inline std::set<std::string> keys_of(const StateDict& dict) {
  std::set<std::string> keys;
  for (const StateEntry& entry : dict) keys.insert(key_of(entry.path));
  return keys;
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace tessera
