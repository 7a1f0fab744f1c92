#include "tessera/module/backward_end.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <memory>
#include <utility>

namespace tessera {

namespace {

/// Owned by the engine's callback: one that is dropped without a run has
/// failed.
class BackwardEnd {
 public:
  BackwardEnd(std::function<void()> finish, std::function<void()> fail)
      : finish_(std::move(finish)), fail_(std::move(fail)) {}
  ~BackwardEnd() {
    if (!ran_) fail_();
  }
  BackwardEnd(const BackwardEnd&) = delete;
  BackwardEnd& operator=(const BackwardEnd&) = delete;

  void run() {
    ran_ = true;
    finish_();
  }

 private:
  std::function<void()> finish_, fail_;
  bool ran_ = false;
};

}  // namespace

void at_backward_end(std::function<void()> finish, std::function<void()> fail) {
  auto end = std::make_shared<BackwardEnd>(std::move(finish), std::move(fail));
  torch::autograd::Engine::get_default_engine().queue_callback(
      [end] { end->run(); });
}

// The engine's own sign, and, where hooks run without it, what the pass is to
// run.
bool backward_asks_by_name() {
  const auto* runs = torch::autograd::get_current_graph_task_exec_info();
  return !torch::autograd::Engine::get_default_engine().is_checkpoint_valid() ||
         (runs != nullptr && !runs->empty());
}

}  // namespace tessera
