// Saving and loading a model, its optimizer and what else a run consists of, on
// any number of ranks.
//
//   checkpoint::save("ckpt/step-1000", state_of(*model, optimizer),
//                    {.world = world});
//
//   State state = state_of(*model, optimizer);       // on any number of ranks
//   if (auto path = checkpoint::latest("ckpt")) {
//     checkpoint::load(*path, state, {.world = world});
//   }
//
// The files are those of torch.distributed.checkpoint: dcp.load of PyTorch 2.11
// reads what is saved here, and what dcp.save wrote is loaded here.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "tessera/checkpoint/folders.h"
#include "tessera/checkpoint/load_plan.h"
#include "tessera/checkpoint/save_folder.h"
#include "tessera/comm/world.h"
#include "tessera/state/state.h"

namespace tessera::checkpoint {

struct SaveOptions {
  // Behaviour.
  World world = {};  // the ranks that save together; empty: those over which
                     // the state's shards are cut, or its optimizer's state is
                     // divided, or this process alone
  Existing existing = Existing::replace;
  // Performance.
  size_t num_threads = 4;  // that write, on each rank
  std::shared_ptr<Storage> storage = local_storage();
};

/// Saves `state` to the folder `path`. Collective.
///
/// When it returns, the checkpoint is on the disk, on every rank; until then
/// `path` is what it was. Each tensor is written once, by a rank that holds it.
/// Errors: InvalidArgument for a state that ranks disagree on, or that would
/// not
///         be saved completely; CheckpointError for what the disk says. The
///         same on every rank, naming rank, path and reason.
void save(const std::string& path, const State& state,
          const SaveOptions& options = {});

enum class Strict {
  yes,  // missing and unexpected keys are errors
  no,   // they are reported, and left as they are
};

struct LoadOptions {
  World world = {};  // as for saving
  Strict strict = Strict::yes;
  size_t num_threads = 4;  // that read, on each rank
  std::shared_ptr<Storage> storage = local_storage();
  // Which save is meant, as CheckpointReader::fingerprint of an earlier look
  // has it. Another that has taken its place since is an error.
  std::optional<uint64_t> save = {};
};

/// Loads the folder `path` into `state`, in place. Collective.
///
/// Each rank reads the bytes that it needs, large tensors by several threads.
/// Host memory beside the state: 512 KiB for each thread, for tensors of another
/// dtype, which are converted, and those that are not in host memory. Missing
/// are keys that the state has and the checkpoint has not; unexpected are
/// tensors below one of the state's names that it has not. Errors:
/// CheckpointError, the same on every rank, naming rank, path and
///         reason. After an error found while reading data (damage that sizes
///         do not show) the state is partly loaded.
KeyReport load(const std::string& path, const State& state,
               const LoadOptions& options = {});

}  // namespace tessera::checkpoint
