#include "tessera/shard/step_phase.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>

#include "tessera/base/error.h"
#include "tessera/module/recompute.h"
#include "tessera/shard/unit.h"

namespace tessera {

bool in_backward() { return backward_under_way() && !in_second_run(); }

bool backward_under_way() {
  return torch::autograd::get_current_graph_task_id() != -1;
}

bool in_training() { return torch::GradMode::is_enabled() || in_first_run(); }

void require_unwritten(const Unit& unit) {
  const auto current = torch::autograd::get_current_node();
  // A second run may be started by a hook, which has no node of its own.
  const auto* node = in_second_run() ? node_of_second_run() : current.get();
  const bool written =
      unit.written_since_gather() || (node && unit.written_since(*node));
  require<InvalidState>(!written, [&] {
    return str("a parameter of unit '", unit.name(),
               "' was written between the "
               "forward pass and this backward pass (optimizer step, load, "
               "in-place write): its gradients would mix old activations with "
               "new weights. Run forward again.");
  });
}

}  // namespace tessera
