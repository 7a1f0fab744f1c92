// A case trained by Tessera, and by one process of plain LibTorch.
#pragma once

#include <nlohmann/json.hpp>

namespace differential {

/// Over W ranks that are threads. What it gives is in outcome.h.
[[nodiscard]] nlohmann::json train_sharded(const nlohmann::json& test_case);

/// All ranks' data in one process, without Tessera's sharding.
[[nodiscard]] nlohmann::json train_plain(const nlohmann::json& test_case);

}  // namespace differential
