// Key-value stores: where ranks meet before they are connected.
//
//   Store store = tcp_store({.host = "10.0.0.1", .port = 29500,
//                            .role = StoreRole::client});
//   store.set("epoch", "3");
//   store.get("epoch");  // waits until some rank has set it
//
// Each is the class of the same name of LibTorch, behind a handle that needs no
// header of it. A store of any other class, your own too, can be put into one.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// A handle; copies share one store. Values are any bytes.
///
/// All calls raise CommError that names the key, when the time-out of the store
/// is over (300 s, see `set_timeout`) or when its server is gone, and
/// InvalidState on an empty handle.
class Store {
 public:
  Store() = default;
  explicit Store(c10::intrusive_ptr<c10d::Store> store);
  Store(const Store&);
  Store(Store&&) noexcept;
  Store& operator=(const Store&);
  Store& operator=(Store&&) noexcept;
  ~Store();

  [[nodiscard]] bool defined() const { return store_.defined(); }

  void set(const std::string& key, const std::string& value) const;
  /// Waits until the key is there.
  [[nodiscard]] std::string get(const std::string& key) const;
  /// Adds to a number, which begins at 0; returns the sum. Atomic.
  int64_t add(const std::string& key, int64_t amount) const;
  /// Sets `key` to `desired` when it holds `expected`, or is not there and
  /// `expected` is empty. Returns what it holds then. Atomic.
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) const;
  /// Returns when all keys are there.
  void wait(const std::vector<std::string>& keys) const;
  void wait(const std::vector<std::string>& keys,
            std::chrono::milliseconds timeout) const;
  /// True when all keys are there. Does not wait.
  [[nodiscard]] bool check(const std::vector<std::string>& keys) const;
  /// True when there was such a key. Errors: Unsupported by some classes.
  bool delete_key(const std::string& key) const;
  [[nodiscard]] int64_t num_keys() const;
  void set_timeout(std::chrono::milliseconds timeout) const;

  [[nodiscard]] const c10::intrusive_ptr<c10d::Store>& c10d() const {
    return store_;
  }

 private:
  [[nodiscard]] c10d::Store& checked(const char* call) const;

  c10::intrusive_ptr<c10d::Store> store_;
};

/// In the memory of this process: for threads, and for tests.
[[nodiscard]] Store hash_store();

/// In a file that all ranks reach, and lock. The file must not be there from an
/// earlier job.
[[nodiscard]] Store file_store(const std::string& path, int world_size);

enum class StoreRole { server, client };

struct TcpStoreOptions {
  std::string host = "127.0.0.1";
  int port = 29500;  // 0, for a server: any free one, see tcp_store_port
  StoreRole role = StoreRole::client;
  std::chrono::milliseconds timeout = std::chrono::seconds(300);
};

/// A server in the memory of this process, or a connection to one. The server
/// ends with its last handle. Errors: CommError that names host and port.
[[nodiscard]] Store tcp_store(const TcpStoreOptions& options);

/// Errors: InvalidArgument when it is not a TCP store.
[[nodiscard]] int tcp_store_port(const Store& store);

/// The keys of `store` that begin with `prefix` and a slash, without it.
[[nodiscard]] Store prefix_store(const std::string& prefix, const Store& store);

}  // namespace tessera
