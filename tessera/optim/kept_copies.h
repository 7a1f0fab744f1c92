// The copies of masters that gathers send (FlatMaster::copy), during a step.
//
// Those that were current before it are so after it, if all of the master that
// changed was written to them, too.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <unordered_map>

#include "tessera/optim/flat_runs.h"
#include "tessera/tensor/spread.h"

namespace tessera {

class KeptCopies {
 public:
  /// Before anything of the master is written.
  void look_at(const std::shared_ptr<FlatMaster>& master) {
    if (master->copy_is_current()) kept_.emplace(master.get(), master);
  }
  /// Where the run is to be written as well; undefined: nowhere.
  [[nodiscard]] at::Tensor of(const FlatRun& run) const {
    return kept_.contains(run.master.get()) ? run.of(run.master->copy)
                                            : at::Tensor();
  }
  /// Something was written to the master alone.
  void lose(const FlatMaster& master) { kept_.erase(&master); }
  /// After the last write and count of versions.
  void note_current() const {
    for (const auto& [key, master] : kept_) master->note_copy_is_current();
  }

 private:
  std::unordered_map<const FlatMaster*, std::shared_ptr<FlatMaster>> kept_;
};

}  // namespace tessera
