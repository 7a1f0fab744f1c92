#include <signal.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <sstream>

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

// Gloo writes to connections that a peer may have closed; the signal that this
// raises would end the process before any message about the lost peer. Python
// ignores it too. A handler of the program's own stays.
void ignore_broken_pipes() {
  struct sigaction now {};
  if (sigaction(SIGPIPE, nullptr, &now) != 0) return;
  const bool has_handler = (now.sa_flags & SA_SIGINFO) != 0;
  if (has_handler || now.sa_handler != SIG_DFL) return;
  now.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &now, nullptr);
}

}  // namespace

GlooDevices make_gloo_devices(const std::string& interfaces,
                              const std::string& host_name) {
  GlooDevices devices;
  std::istringstream names(interfaces);
  for (std::string name; std::getline(names, name, ',');) {
    if (!name.empty()) devices.push_back(Gloo::createDeviceForInterface(name));
  }
  if (!devices.empty()) return devices;
  if (!host_name.empty()) return {Gloo::createDeviceForHostname(host_name)};
  return {Gloo::createDefaultDevice()};
}

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(
    const BackendPlace& place, const GlooDevices& devices) {
  ignore_broken_pipes();
  auto options = Gloo::Options::create(place.timeout);
  options->devices = devices;
  options->threads = place.num_threads;
  return c10::make_intrusive<AbortableGloo>(place.store, place.rank, place.size,
                                            options);
}

}  // namespace tessera
