// A scope in which the parameters of a module are whole and may be written.
//
//   {
//     FullParameters full(*module);        // gathers and waits
//     export_weights(*module);
//   }                                      // sharded again, also on a throw
//
// Inside, members and dictionaries hold the full parameters, in the master's
// dtype and as plain tensors: initialisers, statistics, surgery, clone and
// export work as on any module.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "tessera/module/traversal.h"
#include "tessera/shard/unit.h"

namespace tessera {

enum class Write {
  keep,    // what was written becomes the new shards
  discard  // the shards stay as they were
};

class FullParameters {
 public:
  /// All units of `module` and below it. Collective, on the way in only.
  /// Memory: all of their full parameters, in the master's dtype.
  /// With Write::keep every rank keeps its part of what it wrote itself: write
  /// the same on every rank.
  /// Errors: InvalidState inside InferenceMode or while backward runs.
  explicit FullParameters(torch::nn::Module& module, Write write = Write::keep);
  ~FullParameters();
  FullParameters(const FullParameters&) = delete;
  FullParameters& operator=(const FullParameters&) = delete;

 private:
  friend class UnitMaterializer;
  struct Shown;

  /// One unit; with Values::unset its parameters are filled with NaN instead of
  /// gathered. `module` is where its owners are looked for.
  FullParameters(torch::nn::Module& module, std::shared_ptr<Unit> unit,
                 FullBuffer::Values values);
  /// What parameter `i` of `group`, which is shown, holds now.
  [[nodiscard]] at::Tensor value(const ParameterGroup& group, size_t i) const;
  void show(torch::nn::Module& module, std::shared_ptr<Unit> unit,
            FullBuffer::Values values);

  Write write_;
  std::vector<std::unique_ptr<Shown>> shown_;
};

}  // namespace tessera
