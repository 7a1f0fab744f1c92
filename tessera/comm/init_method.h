// Where the ranks of a job meet, as torch.distributed writes it. Pure.
//
//   env://                                    RANK, WORLD_SIZE, MASTER_ADDR,
//   ... tcp://10.0.0.1:29500?rank=1&world_size=4  rank 0 serves a store there
//   file:///shared/job7?rank=1&world_size=4   a new file that all ranks reach
//
// Rank and world size may stand apart from the URL, in InitOptions.
#pragma once

#include <optional>
#include <string>

namespace tessera {

enum class MeetingPlace { environment, tcp, file };

struct InitMethod {
  MeetingPlace place = MeetingPlace::environment;
  std::string host;  // tcp
  int port = 0;      // tcp
  std::string path;  // file
  std::optional<int> rank = {};
  std::optional<int> world_size = {};
};

/// Reads a URL; "" is "env://". An IPv6 host stands in brackets. `use_libuv` is
/// taken and has no meaning here.
/// Errors: InvalidArgument that says which part is wrong or missing.
[[nodiscard]] InitMethod parse_init_method(const std::string& url);

}  // namespace tessera
