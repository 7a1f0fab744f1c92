// What ZeroRedundancyOptimizer does whatever it wraps; see
// zero_redundancy_optimizer.h.
#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <vector>

#include "tessera/comm/join.h"
#include "tessera/comm/process_group.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/optim/divided_groups.h"
#include "tessera/optim/parameter_broadcast.h"

namespace tessera {

struct ZeroOptions {
  // Behaviour. The ranks that share the state:
  DeviceMesh mesh = {};                  // of one axis; or
  distributed::ProcessGroup group = {};  // instead of a mesh
  // Performance. See BucketView.
  BucketView parameters_as_bucket_view = BucketView::off;
};

/// All of it but the type that is wrapped.
class ZeroRedundancyOptimizerBase : public torch::optim::Optimizer,
                                    public Joinable {
 public:
  ~ZeroRedundancyOptimizerBase() override;
  ZeroRedundancyOptimizerBase(const ZeroRedundancyOptimizerBase&) = delete;
  ZeroRedundancyOptimizerBase& operator=(const ZeroRedundancyOptimizerBase&) =
      delete;

  /// Steps this rank's parameters, and sends each from its owner to all ranks.
  /// Collective. One without gradient on its owner keeps its values; one that
  /// is frozen is neither stepped nor sent. Freezing or unfreezing, which all
  /// ranks do alike, is found here, with a warning.
  ///
  /// Returns: what `closure` returns; it is called on each rank.
  /// Errors:  CommError; those of the optimizer that is wrapped, on the owner
  ///          alone; InvalidState when `param_groups()` has other parameters
  ///          than were given, or a parameter has left its bucket.
  at::Tensor step(LossClosure closure = nullptr) override;

  /// Adds a group and divides it; what was divided before stays where it is.
  /// Collective. (Not virtual in the base: call it on this type.)
  /// Errors: as the constructor; nothing is changed then.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  /// Brings the state of all ranks to group rank `to`, in host memory, for
  /// `save` there; other ranks drop what they had. The next step ends its
  /// validity. Collective. Checkpoints do not need it.
  /// Errors: InvalidArgument, on all ranks, for a rank that is not in the group
  ///         or that differs between ranks.
  void consolidate_state_dict(int to = 0);

  /// The archive of the wrapped optimizer, over all parameters
  /// (`torch::save(optimizer, path)`).
  /// Errors: InvalidState unless consolidate_state_dict brought the state here
  ///         and no step came after.
  void save(torch::serialize::OutputArchive& archive) const override;
  /// Takes such an archive, also one that an optimizer that was never wrapped
  /// wrote, on each rank; keeps this rank's part. Host memory: all states.
  void load(torch::serialize::InputArchive& archive) override;

  [[nodiscard]] const distributed::ProcessGroup& group() const {
    return options_.group;
  }
  /// The group rank that steps `parameter`. Errors: InvalidArgument for one
  /// that is not in this optimizer.
  [[nodiscard]] int owner_of(const at::Tensor& parameter) const;
  [[nodiscard]] bool owns(const at::Tensor& parameter) const;
  /// The optimizer of this rank's parameters, with the options that
  /// `param_groups()` has now. Its groups are those of this one, in order; they
  /// may be empty.
  [[nodiscard]] torch::optim::Optimizer& local_optimizer();

 protected:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;
  using Make =
      std::function<std::unique_ptr<torch::optim::Optimizer>(const Groups&)>;
  struct Makers {
    Make local;    // the optimizer that is wrapped
    Make archive;  // one whose `state()` and archives are of its format
  };

  /// Errors: those of agree_on_parameters, on all ranks; InvalidArgument for a
  ///         mesh and a group, neither, a mesh of several axes, or a group that
  ///         this rank is not in.
  ZeroRedundancyOptimizerBase(
      const Groups& groups,
      std::unique_ptr<torch::optim::OptimizerOptions> defaults, Makers makers,
      ZeroOptions options);

  [[nodiscard]] const distributed::ProcessGroup& join_group() const override {
    return group();
  }
  [[nodiscard]] c10::Device join_device() const override;
  /// With the gradients that are here: those of the others' last backward,
  /// which a DistributedDataParallel that is joined before it leaves.
  void shadow_step() override { step_and_send(); }
  void end_join(WasLast) override {}

 private:
  void step_and_send();
  [[nodiscard]] Groups groups_of(int rank) const;
  void follow_freezing();
  void build_broadcast();
  void sync_options();

  ZeroOptions options_;
  Makers makers_;
  DividedGroups divided_;
  std::unique_ptr<torch::optim::Optimizer> local_;
  std::unique_ptr<torch::optim::Optimizer> consolidated_;
  std::unique_ptr<ParameterBroadcast> broadcast_;
};

}  // namespace tessera
