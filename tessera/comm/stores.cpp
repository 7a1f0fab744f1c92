#include "tessera/comm/stores.h"

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <utility>

#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr int kMaxPort = 65535;

std::string cause_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error ? torch_error->what_without_backtrace() : error.what();
}

// Runs what may wait for a key or a server.
template <class Body>
auto guarded(const char* call, const std::string& what, Body&& body) {
  try {
    return body();
  } catch (const c10::NotImplementedError&) {
    throw Unsupported(tessera::str(
        "Store::", call, ": this class of store has no such ", "call."));
  } catch (const std::exception& error) {
    throw CommError(
        tessera::str("Store::", call, " of ", what, ": ", cause_of(error)));
  }
}

std::string join(const std::vector<std::string>& keys) {
  std::string text;
  for (const std::string& key : keys) {
    text += tessera::str(text.empty() ? "'" : ", '", key, "'");
  }
  return text;
}

}  // namespace

Store::Store(c10::intrusive_ptr<c10d::Store> store)
    : store_(std::move(store)) {}
Store::Store(const Store&) = default;
Store::Store(Store&&) noexcept = default;
Store& Store::operator=(const Store&) = default;
Store& Store::operator=(Store&&) noexcept = default;
Store::~Store() = default;

c10d::Store& Store::checked(const char* call) const {
  require<InvalidState>(defined(), [&] {
    return tessera::str("Store::", call,
                        ": this handle is empty; make it by hash_store, ",
                        "file_store, tcp_store or prefix_store.");
  });
  return *store_;
}

void Store::set(const std::string& key, const std::string& value) const {
  c10d::Store& store = checked("set");
  guarded("set", join({key}), [&] { store.set(key, value); });
}

std::string Store::get(const std::string& key) const {
  c10d::Store& store = checked("get");
  return guarded("get", join({key}), [&] { return store.get_to_str(key); });
}

int64_t Store::add(const std::string& key, int64_t amount) const {
  c10d::Store& store = checked("add");
  return guarded("add", join({key}), [&] { return store.add(key, amount); });
}

std::string Store::compare_set(const std::string& key,
                               const std::string& expected,
                               const std::string& desired) const {
  c10d::Store& store = checked("compare_set");
  return guarded("compare_set", join({key}),
                 [&] { return store.compareSet(key, expected, desired); });
}

void Store::wait(const std::vector<std::string>& keys) const {
  c10d::Store& store = checked("wait");
  guarded("wait", join(keys), [&] { store.wait(keys); });
}

void Store::wait(const std::vector<std::string>& keys,
                 std::chrono::milliseconds timeout) const {
  c10d::Store& store = checked("wait");
  guarded("wait", join(keys), [&] { store.wait(keys, timeout); });
}

bool Store::check(const std::vector<std::string>& keys) const {
  c10d::Store& store = checked("check");
  return guarded("check", join(keys), [&] { return store.check(keys); });
}

bool Store::delete_key(const std::string& key) const {
  c10d::Store& store = checked("delete_key");
  return guarded("delete_key", join({key}),
                 [&] { return store.deleteKey(key); });
}

int64_t Store::num_keys() const {
  c10d::Store& store = checked("num_keys");
  return guarded("num_keys", "all keys", [&] { return store.getNumKeys(); });
}

void Store::set_timeout(std::chrono::milliseconds timeout) const {
  checked("set_timeout").setTimeout(timeout);
}

Store hash_store() { return Store(c10::make_intrusive<c10d::HashStore>()); }

Store file_store(const std::string& path, int world_size) {
  require<InvalidArgument>(!path.empty() && world_size >= 1, [&] {
    return tessera::str("file_store: got the path '", path, "' for ",
                        world_size, " ranks; expected a path, and 1 or more.");
  });
  return Store(c10::make_intrusive<c10d::FileStore>(path, world_size));
}

Store tcp_store(const TcpStoreOptions& options) {
  const bool serves = options.role == StoreRole::server;
  require<InvalidArgument>(
      options.port >= (serves ? 0 : 1) && options.port <= kMaxPort, [&] {
        return tessera::str("tcp_store: the port is ", options.port,
                            "; expected 1 to ", kMaxPort,
                            serves ? ", or 0 for any free one." : ".");
      });
  c10d::TCPStoreOptions c10d_options;
  c10d_options.port = static_cast<std::uint16_t>(options.port);
  c10d_options.isServer = serves;
  c10d_options.waitWorkers = false;
  c10d_options.timeout = options.timeout;
  try {
    return Store(
        c10::make_intrusive<c10d::TCPStore>(options.host, c10d_options));
  } catch (const std::exception& error) {
    throw CommError(tessera::str(
        "tcp_store: cannot ", serves ? "serve" : "reach", " the store at ",
        options.host, ", port ", options.port, ": ", cause_of(error),
        serves ? ". Is the port taken, or the address another machine's?"
               : ". Does its server run, and is the address right?"));
  }
}

int tcp_store_port(const Store& store) {
  const auto* tcp = dynamic_cast<const c10d::TCPStore*>(store.c10d().get());
  require<InvalidArgument>(tcp != nullptr, [] {
    return tessera::str(
        "tcp_store_port: this store was not made by tcp_store.");
  });
  return tcp->getPort();
}

Store prefix_store(const std::string& prefix, const Store& store) {
  require<InvalidArgument>(store.defined(), [&] {
    return tessera::str("prefix_store: the store for '", prefix,
                        "' is an empty handle.");
  });
  return Store(c10::make_intrusive<c10d::PrefixStore>(prefix, store.c10d()));
}

}  // namespace tessera
