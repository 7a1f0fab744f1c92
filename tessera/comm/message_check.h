// Compares the two ends of each message before either is begun.
//
//   rank 0: send to 1, 4 Float      -> first, leaves its record
//   rank 1: recv from 0, 3 Float    -> differs: an error
//
// Messages of a link (one rank to another in a group) that have one tag meet in
// their order. The end that comes first leaves what it is in the store, the
// other holds its own against it and takes the record away. Nobody waits for
// anybody, so ranks may send and receive in any order. The end that finds a
// difference never begins; without it nothing is sent into the tensor of the
// other. The price is one question to the store for the first end, two for the
// other. Inside comm only.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>

namespace c10d {
class Store;
}

namespace tessera {

/// What one rank says of a message that it sends or receives.
struct MessageEnd {
  std::string group;
  std::string backend;  // within the group; each has an order of its own
  int source = 0;       // group rank; kFromAny for any
  int target = 0;       // group rank
  int tag = 0;          // 0 on backends that have none
  std::string call;     // "send", "recv"
  int64_t numel = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;

  static constexpr int kFromAny = -1;
};

/// Thread-safe.
class MessageCheck {
 public:
  MessageCheck(c10::intrusive_ptr<c10d::Store> store, int rank);

  /// What differs between this end and the other, in words; empty when nothing
  /// does, or the other end did not come yet.
  ///
  /// A message that is received from any rank is not compared, and neither are
  /// those that this rank receives in that group under that tag from then on:
  /// which of the senders it takes is not known before.
  /// Errors: what the store throws.
  [[nodiscard]] std::optional<std::string> compare(const MessageEnd& end);

 private:
  /// Empty for a message that is not compared.
  [[nodiscard]] std::string next_key(const MessageEnd& end, int64_t& number);

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  std::mutex mutex_;
  std::map<std::string, int64_t> counts_;  // of messages, by link and tag
  std::set<std::string> from_any_;         // by receiver and tag
};

}  // namespace tessera
