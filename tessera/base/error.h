// The five errors of Tessera, and the one way to raise them.
//
// A message says who, what, got and expected, remedy. Its text is built only on
// failure:
//
//   require<InvalidArgument>(n > 0, [&] {
//     return str("fully_shard: prefetch_depth is ", n, "; give 0 or more.");
//   });
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace tessera {

/// Base of all errors that Tessera raises.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The call is wrong: fix its arguments.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// The call is right but comes at the wrong time or in the wrong order.
class InvalidState : public Error {
 public:
  using Error::Error;
};

/// A peer failed, disagreed, or did not answer in time.
class CommError : public Error {
 public:
  using Error::Error;
};

/// A checkpoint or weight file cannot be read or written.
class CheckpointError : public Error {
 public:
  using Error::Error;
};

/// A known gap: the thing asked for does not exist here (yet).
class Unsupported : public Error {
 public:
  using Error::Error;
};

/// Streams all arguments into one string: `str("rank ", 3)`. An object, not a
/// function, so that argument-dependent look-up finds no other `str`.
struct Str {
  template <class... Args>
  [[nodiscard]] std::string operator()(const Args&... args) const {
    std::ostringstream out;
    (out << ... << args);
    return out.str();
  }
};
inline constexpr Str str{};

/// Raises `E` with the text that `message` returns, unless `ok`.
template <class E = InvalidArgument, class Message>
void require(bool ok, Message&& message) {
  if (!ok) [[unlikely]] {
    throw E(std::forward<Message>(message)());
  }
}

}  // namespace tessera
