#include "tessera/comm/bounded_store.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <utility>

#include "tessera/base/error.h"

namespace tessera {

BoundedStore::BoundedStore(c10::intrusive_ptr<c10d::Store> store,
                           std::chrono::milliseconds patience)
    : store_(std::move(store)), patience_(patience) {}

template <class Call>
auto BoundedStore::ask(Call call) {
  const auto answer = calls_.run(
      [store = store_, call = std::move(call)] { return call(*store); },
      patience_);
  require<CommError>(answer.has_value(),
                     [] { return str("the store does not answer."); });
  return *answer;
}

void BoundedStore::set(const std::string& key, const std::string& value) {
  ask([key, value](c10d::Store& store) {
    store.set(key, value);
    return true;
  });
}

std::string BoundedStore::get(const std::string& key) {
  return ask([key](c10d::Store& store) { return store.get_to_str(key); });
}

bool BoundedStore::check(const std::string& key) {
  return ask([key](c10d::Store& store) { return store.check({key}); });
}

int64_t BoundedStore::add(const std::string& key, int64_t amount) {
  return ask(
      [key, amount](c10d::Store& store) { return store.add(key, amount); });
}

void BoundedStore::delete_key(const std::string& key) {
  ask([key](c10d::Store& store) { return store.deleteKey(key); });
}

}  // namespace tessera
