// What is different between the config of a checkpoint and that of the run that
// goes on from it. Torch-free.
//
//   config_changes(before.toml, now.toml)
//       {"optimizer.lr", "0.001", "0.002"}, {"model.layers", "3", "4"}
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera::train {

struct ConfigChange {
  std::string key;
  std::string before, now;  // as TOML writes them

  bool operator==(const ConfigChange&) const = default;
};

/// The keys that both texts have, with another value each, in the order of
/// their names. Where files lie and how progress is shown does not count:
/// [data], [output], [checkpoint], [distributed], and model.preset, whose
/// meaning stands in the other keys.
/// Errors: InvalidArgument for a text that is not TOML.
[[nodiscard]] std::vector<ConfigChange> config_changes(std::string_view before,
                                                       std::string_view now);

/// Whether the weights of a model mean something else when this key changes.
[[nodiscard]] bool shapes_model(std::string_view key);

/// "optimizer.lr 0.001 -> 0.002".
[[nodiscard]] std::string describe(const ConfigChange& change);

}  // namespace tessera::train
