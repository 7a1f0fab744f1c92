// The checkpoints of a run folder.
//
//   run/checkpoints/step-200/   the state after 200 steps
//   run/checkpoints/best/       that of the lowest held-out loss: links to the
//                               files of a checkpoint that may be gone since
//   run/checkpoints.1/          of a run that began in this folder before
#pragma once

#include <cstdint>
#include <string>

namespace tessera::train {

/// "run/checkpoints".
[[nodiscard]] std::string checkpoint_folder(const std::string& run);
/// "run/checkpoints/step-200".
[[nodiscard]] std::string checkpoint_path(const std::string& run, int64_t step);

/// Makes `best` the same files as the complete checkpoint `path`, in one step.
/// Errors: CheckpointError with path and reason.
void keep_as_best(const std::string& run, const std::string& path);

/// Moves what is no part of a run that goes on after `step` to a folder of its
/// own: checkpoints of later steps, with -1 all. Otherwise they would one day
/// be taken for the newest.
/// Returns: that folder; empty when there were none.
/// Errors:  CheckpointError with path and reason.
std::string set_aside_checkpoints(const std::string& run, int64_t step);

}  // namespace tessera::train
