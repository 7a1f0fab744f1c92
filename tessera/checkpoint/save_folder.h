// Saves a checkpoint folder so that it is there completely or not at all.
//
//   ckpt/.step-10.saving-4f.lock   held while the save lives
//   ckpt/.step-10.saving-4f/       __0_0.distcp, ..., .metadata: written,
//   synced ckpt/step-10/                  ... renamed in one step, in the place
//   of an
//                                  older one if there is one
//
// What a killed save left is removed by the next save to the same folder.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tessera/checkpoint/save_plan.h"
#include "tessera/checkpoint/storage.h"
#include "tessera/checkpoint/writer.h"
#include "tessera/state/peers.h"

namespace tessera::checkpoint {

enum class Existing {
  replace,  // by one rename, when the new checkpoint is complete
  refuse,   // InvalidArgument
};

struct SaveFolderOptions {
  Existing existing = Existing::replace;
  size_t num_threads = 4;  // that write, on each rank
  std::shared_ptr<Storage> storage = local_storage();
};

/// A save that has begun: all ranks agree on the plan, and the folder to write
/// into is there. The parts of one object are called in order.
class FolderSave {
 public:
  /// Collective. Agrees on who writes what of `offer` (this rank's), and makes
  /// the folder.
  FolderSave(std::string path, const Peers& peers,
             const std::function<Offer()>& offer,
             const SaveFolderOptions& options);
  /// Removes what was written, unless it was committed.
  ~FolderSave();
  FolderSave(const FolderSave&) = delete;
  FolderSave& operator=(const FolderSave&) = delete;

  /// Not collective, any thread: writes this rank's part.
  /// Returns: what `commit` wants to know.
  [[nodiscard]] std::string write(const WriteSource& source);

  /// Collective. `write` is what gave this rank's result, or throws what
  /// failed. Completes the checkpoint, or raises the same error everywhere.
  void commit(const Peers& peers, const std::function<std::string()>& write);

  /// Instead of `commit`, without talking to the others: writes this rank's
  /// part and leaves a note of it in the folder. Any thread.
  void write_apart(const WriteSource& source);
  /// On rank 0, after its `write_apart`: waits for the notes of all ranks, and
  /// completes the checkpoint. `keep_waiting` is asked now and then.
  /// Errors: CheckpointError, also when `keep_waiting` says no.
  void commit_apart(int num_ranks, const std::function<bool()>& keep_waiting);

  /// What this rank writes.
  [[nodiscard]] const std::vector<WriteItem>& own_items() const;

 private:
  void prepare();
  void publish(const std::vector<std::string>& written);
  void abandon() noexcept;
  void remove_quietly(const std::string& path) noexcept;

  std::string path_;
  std::string what_;
  int rank_;
  SaveFolderOptions options_;
  SavePlan plan_;
  std::string folder_;  // where the parts are written
  std::unique_ptr<Lock> lock_;
  bool committed_ = false;
};

}  // namespace tessera::checkpoint
