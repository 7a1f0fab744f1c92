// The ranks that save, load or exchange state together, and how they fail: all
// by the same error.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

struct Peers {
  int rank = 0;
  int size = 1;
  // Every rank's bytes, in rank order. Called by all ranks in the same order.
  std::function<std::vector<std::string>(std::string_view bytes)> exchange =
      [](std::string_view bytes) {
        return std::vector<std::string>{std::string(bytes)};
      };
};

/// Runs `body` and tells the others what it gave. Collective: all ranks come
/// here, whether their body throws or not.
/// Returns: every rank's result, in rank order.
/// Errors:  when `body` threw on some rank, on every rank an error of the type
///          and with the text of the lowest such rank, which it names. `what`
///          stands in front, as in "checkpoint::save to 'ckpt/step-10'".
[[nodiscard]] std::vector<std::string> all_or_none(
    const Peers& peers, const std::string& what,
    const std::function<std::string()>& body);

}  // namespace tessera
