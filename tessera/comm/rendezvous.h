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
  /// `is_cancelled` is asked at each look at the store, often; true ends a
  /// wait.
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

  /// A barrier after which nobody needs the store: rank 0, with whose process
  /// it may end, returns behind all others, or some seconds after the barrier
  /// where one of them died then. `at_last` runs behind the barrier and stops
  /// what else of this rank asks the store. Errors: as barrier.
  void part(const std::string& key, const std::function<void()>& at_last);

 private:
  /// One use of a key. In the store stand, below prefix and use, what each rank
  /// brings, how many are there, and "all" when all are.
  struct Meeting {
    std::string what;  // "exchange 'new_group'"
    std::string prefix;
    int64_t use = 0;
  };
  [[nodiscard]] Meeting next_meeting(const std::string& kind,
                                     const std::string& key);
  [[nodiscard]] static std::string key_of(const Meeting& meeting,
                                          std::string_view part);
  [[nodiscard]] std::vector<std::string> keys_of_ranks(
      const Meeting& meeting) const;
  void arrive(const Meeting& meeting, std::string_view value,
              std::chrono::milliseconds timeout);
  [[nodiscard]] std::vector<std::string> values(const Meeting& meeting);
  void leave(const Meeting& meeting);
  [[nodiscard]] std::string missing(const Meeting& meeting);

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  int size_;
  std::chrono::milliseconds timeout_;
  std::function<bool()> is_cancelled_;
  std::mutex mutex_;
  std::map<std::string, int64_t> uses_;
};

}  // namespace tessera
