// Stand-in, see gloo/algorithm.h. The order of the virtual functions is the
// order in Gloo, for c10d's class overrides them.
#pragma once
#define GLOO_STORE_HAS_STORE_V2 1
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace gloo::rendezvous {
class Store {
 public:
  using Bytes = std::vector<char>;
  using Keys = std::vector<std::string>;
  static constexpr std::chrono::milliseconds kDefaultTimeout =
      std::chrono::seconds(30);
  virtual ~Store();
  virtual void set(const std::string&, const Bytes&) = 0;
  virtual Bytes get(const std::string&) = 0;
  virtual void wait(const Keys&, const std::chrono::milliseconds&) = 0;
  virtual void wait(const Keys&) = 0;
  virtual bool has_v2_support() = 0;
  virtual std::vector<Bytes> multi_get(const Keys&) = 0;
  virtual void multi_set(const Keys&, const std::vector<Bytes>&) = 0;
  virtual void append(const std::string&, const Bytes&) = 0;
  virtual int64_t add(const std::string&, int64_t) = 0;
};
}  // namespace gloo::rendezvous
