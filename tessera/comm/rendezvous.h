// Where the ranks of one group meet by way of a store: small, slow, robust.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace c10d {
class Store;
}

namespace tessera {

class Rendezvous {
 public:
  /// `is_cancelled` is asked about twice a second; true ends a wait.
  Rendezvous(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
             std::chrono::milliseconds timeout,
             std::function<bool()> is_cancelled);

  /// Every rank's bytes for `key`, in rank order. A key may be used again; its
  /// n-th use meets the n-th use of the others.
  /// Errors: CommError that names the ranks that did not come.
  [[nodiscard]] std::vector<std::string> exchange(const std::string& key,
                                                  std::string_view bytes);

  /// Returns when all ranks are here. Errors: CommError that names the ranks
  /// that did not come.
  void barrier(const std::string& key);
  void barrier(const std::string& key, std::chrono::milliseconds timeout);

 private:
  int64_t next_use(const std::string& key);
  void wait_for(const std::vector<std::string>& keys, const std::string& what,
                std::chrono::milliseconds timeout);
  [[nodiscard]] std::string missing(const std::vector<std::string>& keys);

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  int size_;
  std::chrono::milliseconds timeout_;
  std::function<bool()> is_cancelled_;
  std::mutex mutex_;
  std::map<std::string, int64_t> uses_;
};

}  // namespace tessera
