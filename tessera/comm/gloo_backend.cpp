#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "tessera/comm/backend_factory.h"

namespace tessera {
namespace {

using Gloo = c10d::ProcessGroupGloo;

// Gloo's own class has no abort; closing the connections is what ends a wait of
// a peer at once.
class AbortableGloo final : public Gloo {
 public:
  using Gloo::Gloo;

  void abort() override {
    for (const auto& context : contexts_) context->closeConnections();
  }
};

}  // namespace

std::shared_ptr<gloo::transport::Device> make_gloo_device(
    const std::string& interface, const std::string& host_name) {
  if (!interface.empty()) return Gloo::createDeviceForInterface(interface);
  if (!host_name.empty()) return Gloo::createDeviceForHostname(host_name);
  return Gloo::createDefaultDevice();
}

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(
    const BackendPlace& place,
    std::shared_ptr<gloo::transport::Device> device) {
  auto options = Gloo::Options::create(place.timeout);
  options->devices.push_back(std::move(device));
  options->threads = 1;  // all we use, send and recv, runs on the device's
  return c10::make_intrusive<AbortableGloo>(place.store, place.rank, place.size,
                                            options);
}

}  // namespace tessera
