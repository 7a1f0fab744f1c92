// Data parallel training of a model that fits on every rank: all keep all
// parameters, and backward averages the gradients in buckets beside its own
// work.
//
//   Net net;
//   net->to(mesh.device());
//   DistributedDataParallel ddp(net, {.mesh = mesh});
//   torch::optim::AdamW optimizer(net->parameters(), 3e-4);
//   for (auto& batch : loader) {
//     loss_of(ddp(batch.input), batch.target).backward();
//     optimizer.step();
//     optimizer.zero_grad();
//   }
//
// What PyTorch's torch.nn.parallel.DistributedDataParallel does, on the
// library's groups. The module stays what it is: its parameters and names are
// the user's own, and checkpoints of it are those of a model alone.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <utility>
#include <vector>

#include "tessera/comm/join.h"
#include "tessera/module/each_tensor.h"
#include "tessera/parallel/comm_hooks.h"
#include "tessera/parallel/data_parallel_options.h"
#include "tessera/parallel/gradient_bucket.h"

namespace tessera {

class GradientReducer;
class NoSync;

/// What does not depend on the module's type.
class DataParallel : public Joinable {
 public:
  ~DataParallel() override;

  /// While it lives, forwards ask for no reduction: their gradients add up on
  /// this rank, and the next reduced backward sends the sum.
  [[nodiscard]] NoSync no_sync();

  /// Instead of the mean over the ranks. Once, before the first backward, on
  /// all ranks alike. Errors: InvalidState afterwards.
  void set_comm_hook(CommHook hook);

  /// Whose ranks have the copies; for collectives of hooks.
  [[nodiscard]] const distributed::ProcessGroup& process_group() const {
    return group_;
  }

 protected:
  DataParallel(torch::nn::Module& module, const DataParallelOptions& options);

  /// Around a forward; whether its backward reduces is decided here.
  void before_forward();
  [[nodiscard]] at::Tensor after_forward(const at::Tensor& output) const;

  [[nodiscard]] const distributed::ProcessGroup& join_group() const override {
    return group_;
  }
  [[nodiscard]] c10::Device join_device() const override { return device_; }
  void shadow_step() override;
  void end_join(WasLast was_last) override;

 private:
  friend class NoSync;

  /// What all ranks of a join have to know of a step.
  struct Step {
    bool reduces = false;
    bool sends_buffers = false;
    int root = -1;  // group rank that has batches
  };
  [[nodiscard]] Step agree(const Step& mine) const;
  void send_buffers(int root) const;
  [[nodiscard]] bool reduces_now() const;

  distributed::ProcessGroup group_;
  c10::Device device_ = at::kCPU;
  BufferSync buffer_sync_;
  std::vector<at::Tensor> parameters_;  // all that are not ignored
  std::vector<at::Tensor> buffers_;
  std::shared_ptr<GradientReducer> reducer_;
  bool syncs_ = true;
};

/// See DataParallel::no_sync.
class NoSync {
 public:
  explicit NoSync(DataParallel& parallel)
      : parallel_(parallel), before_(std::exchange(parallel.syncs_, false)) {}
  ~NoSync() { parallel_.syncs_ = before_; }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  DataParallel& parallel_;
  bool before_;
};

/// Holder: a module holder (Net) or a std::shared_ptr of a module.
template <class Holder>
class DistributedDataParallel final : public DataParallel {
 public:
  /// Collective over the group. The module's parameters get rank 0's values,
  /// in place, so an optimizer may be made before or after.
  /// Errors: InvalidArgument for a mesh and a group, neither, or a mesh of
  ///         several axes; a model without trained parameters, on another
  ///         device, or unlike on some rank, on all ranks then; sharded
  ///         parameters that are not ignored; InvalidState for meta parameters.
  explicit DistributedDataParallel(Holder module,
                                   const DataParallelOptions& options)
      : DataParallel(*module, options), module_(std::move(module)) {}

  /// The module's forward. Collective over the group outside of `no_sync` where
  /// the module has buffers. In backward, on all ranks alike: Errors:
  /// InvalidState for parameters without a gradient, unless
  /// UnusedParameters::find; or with more than one (see StaticGraph).
  template <class... Inputs>
  auto operator()(Inputs&&... inputs) {
    before_forward();
    auto outputs = module_->forward(std::forward<Inputs>(inputs)...);
    using Outputs = decltype(outputs);
    static_assert(internal::TensorsIn<Outputs>::known,
                  "DistributedDataParallel: forward must return tensors, or "
                  "standard containers of them");
    internal::change_tensors(outputs, [this](const at::Tensor& output) {
      return after_forward(output);
    });
    return outputs;
  }
  template <class... Inputs>
  auto forward(Inputs&&... inputs) {
    return (*this)(std::forward<Inputs>(inputs)...);
  }

  [[nodiscard]] const Holder& module() const { return module_; }

 private:
  Holder module_;
};

}  // namespace tessera
