// What tests of groups ask.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <string>

#include "tessera/comm/distributed.h"

namespace tessera::distributed {

using namespace std::chrono_literals;

inline constexpr auto kTimeout = 20s;

/// What an error of type E says.
template <class E, class Body>
std::string message_of(Body&& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  ADD_FAILURE() << "no such error";
  return "";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Of a collective: 1 for group rank 0, 2 for rank 1, ...
inline int64_t sum_of_ranks(const ProcessGroup& group) {
  auto tensor = torch::full({3}, group.rank() + 1);
  all_reduce(tensor, group).wait();
  return tensor[2].item<int64_t>();
}

}  // namespace tessera::distributed
