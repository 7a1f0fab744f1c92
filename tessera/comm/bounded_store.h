// A store whose process may be stopped, cut off or gone. Inside comm only.
//
// c10d's client of a TCPStore waits for an answer without end.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "tessera/comm/bounded_calls.h"

namespace c10d {
class Store;
}

namespace tessera {

class BoundedStore {
 public:
  BoundedStore(c10::intrusive_ptr<c10d::Store> store,
               std::chrono::milliseconds patience);

  /// Errors: CommError when no answer comes within the patience; what the store
  ///         throws when it is gone.
  void set(const std::string& key, const std::string& value);
  [[nodiscard]] std::string get(const std::string& key);
  [[nodiscard]] bool check(const std::string& key);
  int64_t add(const std::string& key, int64_t amount);
  void delete_key(const std::string& key);

  /// See BoundedCalls.
  void hurry(std::chrono::milliseconds within) { calls_.hurry(within); }
  [[nodiscard]] bool answers() const { return !calls_.stuck(); }

 private:
  template <class Call>
  auto ask(Call call);

  c10::intrusive_ptr<c10d::Store> store_;
  std::chrono::milliseconds patience_;
  BoundedCalls calls_;
};

}  // namespace tessera
