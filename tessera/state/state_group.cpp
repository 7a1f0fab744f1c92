#include "tessera/state/state_group.h"

#include <numeric>
#include <vector>

#include "tessera/base/environment.h"
#include "tessera/base/error.h"
#include "tessera/comm/communicator.h"
#include "tessera/tensor/spread.h"

namespace tessera {
namespace {


StateGroup group_over(std::shared_ptr<Communicator> communicator,
                      c10::Device device) {
  Peers peers{communicator->rank(), communicator->size(),
              [communicator](std::string_view bytes) {
                return communicator->exchange(bytes, {.phase = kStatePhase});
              }};
  return {std::move(peers), std::move(communicator), device};
}

std::shared_ptr<Communicator> communicator_of(const World& world) {
  std::vector<int> ranks(static_cast<size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.make_communicator(str("state dict ", world.next_id()), ranks);
}

}  // namespace

StateGroup state_group(torch::nn::Module& model, const World& world) {
  StateGroup group;
  for (const at::Tensor& parameter : model.parameters()) {
    const Spread* spread = parameter.defined() ? spread_of(parameter) : nullptr;
    if (spread == nullptr || !spread->holders) continue;
    if (!group.communicator) {
      group = group_over(spread->holders, spread->holders->device());
    }
    require<InvalidArgument>(
        group.communicator->size() == spread->holders->size() &&
            group.communicator->rank() == spread->holders->rank(),
        [&] {
          return str("state dict: parameter '", spread->name,
                     "' is held by other ranks than those before it. Take "
                     "the state of each part of the model by itself.");
        });
  }
  if (group.communicator) return group;
  if (world.defined()) {
    if (world.size() == 1) return {};
    return group_over(communicator_of(world), world.device());
  }
  require<InvalidArgument>(
      environment::launch().world_size.value_or(1) == 1, [] {
        return str(
            "state dict: this is one of several ranks, and the model is not "
            "cut over them. Give {.world = world}.");
      });
  return {};
}

}  // namespace tessera
