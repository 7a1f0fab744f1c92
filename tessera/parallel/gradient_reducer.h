// Brings the ranks' gradients together while backward computes them.
//
//   forward    | output.register_hook -----.
//   backward            begin_pass <-------'
//                       gradient of p7, p6 ... -> bucket 0 full: starts
//                       gradient of p3 ...     -> bucket 1 full: starts
//   its end             waits for them in order, writes .grad
//
// Buckets start in one order on all ranks, however their gradients come; one
// that is full early waits for those before it. Passes whose forward asked for
// no reduction leave gradients to add up on their rank.
//
// Inside parallel only.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/comm/process_group.h"
#include "tessera/parallel/buckets.h"
#include "tessera/parallel/data_parallel_options.h"
#include "tessera/parallel/named_tensor.h"

namespace tessera {

class GradientReducer : public std::enable_shared_from_this<GradientReducer> {
 public:
  /// parameters: those that are trained, in the same order on all ranks.
  GradientReducer(const std::vector<NamedTensor>& parameters,
                  distributed::ProcessGroup group,
                  const DataParallelOptions& options);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Before a forward whose backward reduces. Collective when buckets are to
  /// follow the order in which gradients came. Errors: InvalidState where
  /// parameters are not what they were.
  void prepare_forward();

  /// A backward that comes to `output` reduces. Returns what to hand out.
  [[nodiscard]] at::Tensor mark_output(const at::Tensor& output);

  /// A forward whose backward does not reduce: from now on gradients may come
  /// that stay on this rank.
  void note_no_sync() { had_no_sync_ = true; }

  /// Errors: InvalidState for a second one.
  void set_comm_hook(CommHook hook);

  /// Of a rank without batches: one backward of the others, with zeros for its
  /// own gradients; what all have then is written as after a backward (an
  /// optimizer whose state is divided steps with it). Behind prepare_forward.
  void shadow_backward();
  /// The mean is over so many ranks.
  void set_divisor(int64_t divisor) { divisor_ = divisor; }

 private:
  /// A parameter in the passes.
  struct Slot {
    std::string name;
    at::Tensor tensor;
    // AutogradMeta holds it weakly; the hook is on it.
    std::shared_ptr<torch::autograd::Node> accumulator;
    uintptr_t hook = 0;
    int64_t count = 0;     // of gradients in this pass
    int64_t expected = 1;  // StaticGraph: what the first pass had
    bool used = false;     // since the last reduction
  };

  void add_hook(size_t i);
  void note_gradient(size_t i);
  void rebuild_buckets();
  void check_parameters() const;
  void begin_pass();
  void begin_without_output(const Slot& slot);
  void take_unused_out_of_buckets();
  void refuse_gradients();
  void finish_pass();
  void abandon_pass();
  void end_pass();
  void check_all_came() const;
  void learn_graph();
  [[nodiscard]] bool learns_graph() const {
    return static_graph_ == StaticGraph::yes && !learned_graph_;
  }
  [[nodiscard]] bool finds_unused() const;
  [[nodiscard]] std::vector<bool> used_anywhere();
  [[nodiscard]] HookCall hook_call() const { return {hook_, divisor_}; }

  const distributed::ProcessGroup group_;
  const UnusedParameters unused_;
  const StaticGraph static_graph_;
  const GradientMemory memory_;
  int64_t divisor_;
  Buckets buckets_;
  std::vector<Slot> slots_;
  CommHook hook_;  // the mean, unless there is an own one
  bool has_own_hook_ = false;
  std::mutex mutex_;  // several devices of the engine may have gradients
  bool running_ = false;
  int64_t pending_forwards_ = 0;  // without a backward yet
  bool had_no_sync_ = false;
  bool learned_graph_ = false;
  // In a backward that is for some parameters only.
  std::atomic<bool> refuses_ = false;
  int64_t num_passes_ = 0;
  bool rebuilt_ = false;
  std::vector<size_t> came_in_order_;  // of the first pass
  std::vector<bool> used_always_;      // StaticGraph: of the first pass
};

}  // namespace tessera
