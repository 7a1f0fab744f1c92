// Python pickles as data: a tree of nodes, and nothing is ever called.
//
//   const Pickle pickle = read_pickle(bytes, "ckpt/.metadata");
//   pickle.root().kind == PickleNode::Kind::object ...
//
// A pickle is a program for a stack machine. Here the opcodes that would import
// or call only make nodes that say so; whoever decodes the tree knows a few
// names and refuses the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::checkpoint {

struct PickleNode {
  enum class Kind : uint8_t {
    none,
    boolean,        // integer: 0 or 1
    integer,        // integer
    big_integer,    // text: two's complement, little-endian
    real,           // real
    text,           // text: UTF-8
    bytes,          // text
    tuple,          // children
    list,           // children
    set,            // children
    dict,           // children: key, value, key, value, ...
    global,         // text: "module name", as in "torch Size"
    object,         // children: class, arguments, state or null, items...
    call,           // children: callable, arguments, state or null, items...
    persistent_id,  // children: the id
  };

  Kind kind = Kind::none;
  bool sealed = false;  // part of another node: changes no more
  uint16_t depth = 1;   // of the tree below, this node included
  uint32_t offset = 0;  // of the opcode that made it
  uint64_t weight = 1;  // nodes below, each counted as often as it is met
  union {
    int64_t integer = 0;
    double real;
  };
  std::string text = {};
  std::vector<const PickleNode*> children = {};
};

struct PickleLimits {
  size_t most_depth = 200;
  uint64_t most_nodes = 100'000'000;  // shared ones counted each time
};

/// The tree of one pickle. Without cycles; parts may be shared.
class Pickle {
 public:
  [[nodiscard]] const PickleNode& root() const { return *root_; }

 private:
  friend class PickleReader;
  std::deque<PickleNode> nodes_;
  const PickleNode* root_ = nullptr;
};

/// Reads a pickle of protocol 2 to 5. `what` stands in messages.
/// Errors: CheckpointError, with the opcode and its byte, for an opcode that is
///         not known here, a cut or trailing text, a stack that is too short,
///         a memo entry that is not there, invalid UTF-8, a structure that
///         contains itself, and anything beyond `limits`.
[[nodiscard]] Pickle read_pickle(std::string_view bytes,
                                 const std::string& what,
                                 const PickleLimits& limits = {});

/// Emits a pickle of protocol 2, opcode by opcode, in the order in which Python
/// puts them on its stack.
///
///   PickleWriter out;
///   out.global("torch", "Size").mark().mark().integer(5).tuple().tuple();
///   out.reduce();
///   std::string bytes = out.finish();
class PickleWriter {
 public:
  enum class Memo {
    none,     // every text in full: for items
    strings,  // texts and globals once, then by number: for `.metadata`
  };

  explicit PickleWriter(Memo memo = Memo::none);
  ~PickleWriter();
  PickleWriter(PickleWriter&&) noexcept;

  PickleWriter& none() { return raw("N"); }
  PickleWriter& boolean(bool value) { return raw(value ? "\x88" : "\x89"); }
  PickleWriter& integer(int64_t value);
  /// `bytes`: two's complement, little-endian.
  PickleWriter& big_integer(std::string_view bytes);
  PickleWriter& real(double value);
  PickleWriter& text(std::string_view value);
  PickleWriter& bytes(std::string_view value);
  PickleWriter& global(std::string_view module, std::string_view name);
  PickleWriter& mark() { return raw("("); }
  PickleWriter& tuple() { return raw("t"); }  // of all since the mark
  PickleWriter& empty_tuple() { return raw(")"); }
  PickleWriter& empty_list() { return raw("]"); }
  PickleWriter& appends() { return raw("e"); }
  PickleWriter& empty_dict() { return raw("}"); }
  PickleWriter& setitems() { return raw("u"); }
  PickleWriter& reduce() { return raw("R"); }
  PickleWriter& newobj() { return raw(")\x81"); }  // without arguments
  PickleWriter& build() { return raw("b"); }
  PickleWriter& persistent_id() { return raw("Q"); }

  /// Ends the program and gives it away.
  [[nodiscard]] std::string finish();

 private:
  struct Memory;

  PickleWriter& raw(std::string_view bytes);
  bool recall(const std::string& key);
  void remember(const std::string& key);

  std::string out_;
  std::unique_ptr<Memory> memory_;
};

}  // namespace tessera::checkpoint
