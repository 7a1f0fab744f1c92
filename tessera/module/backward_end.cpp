#include "tessera/module/backward_end.h"

#include <torch/csrc/autograd/engine.h>

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

}  // namespace tessera
