// What a DistributedDataParallel can be told. Names in comments are PyTorch's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tessera/comm/process_group.h"
#include "tessera/mesh/device_mesh.h"

namespace tessera {

/// What a backward pass does that leaves parameters without a gradient.
enum class UnusedParameters {
  error,  // names them
  find,   // find_unused_parameters=True: they count as zeros; where no rank has
          // a gradient, none is written. One small sum a step more, and buckets
          // from the first with such a parameter on leave at backward's end
};

enum class StaticGraph {
  no,
  yes,  // every pass has the same gradients in the same order, however often
        // one comes in a pass (weights shared by recomputed regions)
};

enum class GradientMemory {
  own,  // .grad stays a tensor of its own, buckets are there in backward only
  bucket,  // gradient_as_bucket_view=True: .grad lies in a bucket, which stays
           // as long; nothing is copied where nobody replaces it
};

enum class InitSync {
  broadcast,  // all start with the values of rank 0
  none,       // they are equal already
};

enum class BufferSync {
  before_forward,  // broadcast_buffers=True: those of rank 0
  none,
};

struct DataParallelOptions {
  DeviceMesh mesh = {};                  // of one axis; or
  distributed::ProcessGroup group = {};  // process_group, instead of a mesh
  // bucket_cap_mb. The first bucket has 1 MiB at most, so that it leaves early.
  double bucket_cap_mib = 25;
  UnusedParameters unused_parameters = UnusedParameters::error;
  StaticGraph static_graph = StaticGraph::no;
  GradientMemory gradient_memory = GradientMemory::own;
  InitSync init_sync = InitSync::broadcast;
  BufferSync buffer_sync = BufferSync::before_forward;
  // Left as they are, on each rank by itself; fully_shard's may stand here.
  std::vector<at::Tensor> ignored_params = {};
};

}  // namespace tessera
