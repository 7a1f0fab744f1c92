#include "tessera/base/error.h"
#include "tessera/graph/device_graph.h"

namespace tessera {

struct DeviceGraph::Impl {};

DeviceGraph::DeviceGraph(c10::Device device) {
  throw Unsupported(tessera::str(
      "GraphedStep: a step on ", device,
      " cannot be captured as a CUDA graph: this build has no CUDA. Run the "
      "step without a graph, or build with TESSERA_CUDA=ON."));
}

// Never reached: there is no object.
DeviceGraph::~DeviceGraph() = default;
void DeviceGraph::run(const std::function<void()>& body) { body(); }
void DeviceGraph::capture(const std::function<void()>& /*body*/) {}
bool DeviceGraph::captured() const { return false; }
void DeviceGraph::drop() {}
void DeviceGraph::replay() {}

}  // namespace tessera
