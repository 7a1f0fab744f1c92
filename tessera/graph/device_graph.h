// Work of one CUDA device, recorded once and done again at the cost of one
// launch.
//
//   DeviceGraph graph(device);
//   graph.run(body);      // done now, on the graph's own stream
//   graph.capture(body);  // recorded: nothing is done
//   graph.replay();       // done
//
// For tessera/graph/graphed_step.h, which says what a body may do.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace tessera {

class DeviceGraph {
 public:
  /// Errors: Unsupported when `device` is not a CUDA device, or this build has
  ///         no CUDA.
  explicit DeviceGraph(c10::Device device);
  ~DeviceGraph();
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;

  /// On the stream that captures use, after the work that is there and before
  /// the work that comes.
  void run(const std::function<void()>& body);

  /// Waits for the device, gives cached memory back, and records; a graph
  /// recorded before is dropped first.
  /// Errors: Unsupported that names the operator at which it failed and why.
  ///         There is no graph then, and the device can be used as before.
  void capture(const std::function<void()>& body);

  [[nodiscard]] bool captured() const;
  void drop();

  /// On the current stream.
  void replay();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
