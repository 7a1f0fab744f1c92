#include "tessera/shard/lanes.h"

#include "tessera/base/log.h"
#include "tessera/device/stream.h"

namespace tessera {

std::shared_ptr<const ShardLanes> make_lanes(const MeshRoles& roles) {
  const bool first_use = !roles.shard.has_communicator("gather");
  // The order is the same on all ranks.
  auto lanes = std::make_shared<ShardLanes>();
  lanes->gather = roles.shard.communicator("gather");
  lanes->reduce = roles.shard.communicator("reduce");
  if (roles.replicate.defined()) {
    lanes->norm = roles.shard.communicator("norm");
    lanes->all_reduce = roles.replicate.communicator("all_reduce");
    lanes->control = roles.all.flatten("all").communicator("control");
  } else {
    lanes->control = roles.shard.communicator("control");
    lanes->norm = lanes->control;
  }
  lanes->device = roles.shard.device();
  lanes->gather_stream = make_stream(lanes->device, StreamPriority::high);
  lanes->reduce_stream = make_stream(lanes->device, StreamPriority::normal);
  lanes->all_reduce_stream =
      roles.replicate.defined()
          ? make_stream(lanes->device, StreamPriority::normal)
          : lanes->reduce_stream;
  if (roles.replicate.defined() && first_use && lanes->control->rank() == 0) {
    log_info(str("fully_shard: on the mesh ", roles.all.describe(),
                 " parameters are cut along '", roles.shard.axes()[0],
                 "' and replicated along '", roles.replicate.axes()[0], "'."));
  }
  return lanes;
}

}  // namespace tessera
