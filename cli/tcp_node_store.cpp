#include "cli/tcp_node_store.h"

#include <c10/util/Flags.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <utility>

#include "cli/launch/launch_error.h"

C10_DECLARE_int(caffe2_log_level);

namespace tessera::cli {
namespace {

// LibTorch would write a stack trace for each try to connect; what matters of
// it comes as an exception.
void write_only_errors() {
  constexpr int kError = 2;
  FLAGS_caffe2_log_level = kError;
}

using launch::Endpoint;
using launch::LaunchError;
using launch::NodeStore;
using launch::StoreGone;
using std::chrono::milliseconds;

std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

c10::intrusive_ptr<c10d::TCPStore> open_store(const Endpoint& endpoint,
                                              bool hosts,
                                              milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(endpoint.port);
  options.isServer = hosts;
  options.waitWorkers = false;
  options.timeout = timeout;
  return c10::make_intrusive<c10d::TCPStore>(endpoint.host, options);
}

// Runs what may meet a broken connection.
template <class Body>
auto guarded(Body&& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    throw StoreGone(first_line(error));
  }
}

class TcpNodeStore : public NodeStore {
 public:
  TcpNodeStore(c10::intrusive_ptr<c10d::TCPStore> store, bool hosted_here)
      : store_(std::move(store)), hosted_here_(hosted_here) {}

  [[nodiscard]] bool hosted_here() const override { return hosted_here_; }

  void set(const std::string& key, const std::string& value) override {
    guarded([&] {
      store_->set(key, std::vector<uint8_t>(value.begin(), value.end()));
      return 0;
    });
  }

  std::optional<std::string> get(const std::string& key) override {
    return guarded([&]() -> std::optional<std::string> {
      if (!store_->check({key})) return std::nullopt;
      const std::vector<uint8_t> value = store_->get(key);
      return std::string(value.begin(), value.end());
    });
  }

  int64_t add(const std::string& key, int64_t number) override {
    return guarded([&] { return store_->add(key, number); });
  }

  std::string set_if_absent(const std::string& key,
                            const std::string& value) override {
    return guarded([&] {
      const std::vector<uint8_t> there = store_->compareSet(
          key, {}, std::vector<uint8_t>(value.begin(), value.end()));
      return std::string(there.begin(), there.end());
    });
  }

 private:
  c10::intrusive_ptr<c10d::TCPStore> store_;
  bool hosted_here_;
};

std::unique_ptr<NodeStore> host(const Endpoint& endpoint,
                                milliseconds timeout) {
  try {
    return std::make_unique<TcpNodeStore>(open_store(endpoint, true, timeout),
                                          true);
  } catch (const std::exception& error) {
    throw LaunchError(launch::kExitPortTaken,
                      str("cannot hold the store of the job at ",
                          endpoint.text(), ": ", first_line(error),
                          "; is the port taken by another job? Give another, "
                          "the same on all nodes"));
  }
}

std::unique_ptr<NodeStore> join(const Endpoint& endpoint,
                                milliseconds timeout) {
  return guarded([&]() -> std::unique_ptr<NodeStore> {
    return std::make_unique<TcpNodeStore>(open_store(endpoint, false, timeout),
                                          false);
  });
}

}  // namespace

launch::OpenNodeStore tcp_node_store(const Endpoint& endpoint, StoreRole role) {
  write_only_errors();
  return [endpoint, role](milliseconds timeout) {
    if (role == StoreRole::host) return host(endpoint, timeout);
    if (role == StoreRole::join) return join(endpoint, timeout);
    try {
      return host(endpoint, timeout);
    } catch (const LaunchError&) {
      return join(endpoint, timeout);
    }
  };
}

}  // namespace tessera::cli
