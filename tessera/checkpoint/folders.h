// The checkpoints of one run: folders side by side, named for their steps.
//
//   ckpt/step-100/  ckpt/step-200/  ckpt/.step-300.saving-4f/ (unfinished)
//
//   latest("ckpt")                       "ckpt/step-200"
//   prune("ckpt", {.keep_latest = 2})    removes all but the last two
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/storage.h"

namespace tessera::checkpoint {

/// The number at the end of a folder's name: 100 of "step-100"; -1 for none.
[[nodiscard]] int64_t step_of(const std::string& name);

/// The complete checkpoints in `folder`, by step. Unfinished and damaged ones
/// (no readable `.metadata`, files missing or cut) are left out, with a warning
/// for the latter.
[[nodiscard]] std::vector<std::string> list_checkpoints(
    const std::string& folder,
    const std::shared_ptr<Storage>& storage = local_storage());

/// The last of them.
[[nodiscard]] std::optional<std::string> latest(
    const std::string& folder,
    const std::shared_ptr<Storage>& storage = local_storage());

/// What stands in the name of a folder that is being written:
/// ".step-300.saving-4f".
inline constexpr std::string_view kSaving = ".saving-";

struct Retention {
  int64_t keep_latest = 0;  // this many; 0: all
  int64_t keep_every = 0;   // and every step that this divides; 0: none such
};

/// Which of `steps` (in rising order) `retention` lets go.
[[nodiscard]] std::vector<int64_t> steps_to_remove(
    const std::vector<int64_t>& steps, const Retention& retention);

/// Removes what killed saves of checkpoint `name` have left in `folder`; of all
/// checkpoints, when the name is empty. What a save holds stays.
void remove_abandoned(const std::string& folder, const std::string& name,
                      Storage& storage);

/// Removes complete checkpoints that `retention` does not keep. Each is renamed
/// first, so that none is ever seen half removed. What killed saves have left
/// goes too. Only one rank calls it.
/// Returns: the paths removed.
std::vector<std::string> prune(
    const std::string& folder, const Retention& retention,
    const std::shared_ptr<Storage>& storage = local_storage());

}  // namespace tessera::checkpoint
