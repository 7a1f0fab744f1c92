#include "tessera/checkpoint/value_pickle.h"

#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

using Kind = PickleNode::Kind;

// Python writes long lists in batches of this many.
constexpr size_t kBatch = 1000;

class Writer {
 public:
  explicit Writer(PickleWriter& out) : out_(out) {}

  void operator()(Value::None) { out_.none(); }
  void operator()(bool value) { out_.boolean(value); }
  void operator()(int64_t value) { out_.integer(value); }
  void operator()(double value) { out_.real(value); }
  void operator()(const std::string& value) { out_.text(value); }
  void operator()(const Value::Bytes& value) { out_.bytes(value.bytes); }
  void operator()(const Value::BigInteger& value) {
    out_.big_integer(value.bytes);
  }
  void operator()(const Value::Tuple& value) {
    if (value.items.empty()) {
      out_.empty_tuple();
      return;
    }
    out_.mark();
    for (const Value& item : value.items) write_value(out_, item);
    out_.tuple();
  }
  void operator()(const Value::List& value) {
    out_.empty_list();
    for (size_t i = 0; i < value.items.size(); ++i) {
      if (i % kBatch == 0) out_.mark();
      write_value(out_, value.items[i]);
      if ((i + 1) % kBatch == 0 || i + 1 == value.items.size()) out_.appends();
    }
  }
  void operator()(const Value::Dict& value) {
    out_.empty_dict();
    for (size_t i = 0; i < value.pairs.size(); ++i) {
      if (i % kBatch == 0) out_.mark();
      write_value(out_, value.pairs[i].first);
      write_value(out_, value.pairs[i].second);
      if ((i + 1) % kBatch == 0 || i + 1 == value.pairs.size()) out_.setitems();
    }
  }
  [[noreturn]] void operator()(const Value::Opaque& value) {
    throw InvalidArgument(str("checkpoint: a value that was not understood (",
                              value.why, ") cannot be part of another."));
  }

 private:
  PickleWriter& out_;
};

[[noreturn]] void refuse(const PickleNode& node, const std::string& what,
                         const std::string& why) {
  throw CheckpointError(
      str("pickle of ", what, ": at byte ", node.offset, ": ", why, "."));
}

Value::Items items_of(const PickleNode& node, const std::string& what) {
  Value::Items items;
  items.reserve(node.children.size());
  for (const PickleNode* child : node.children) {
    items.push_back(value_of(*child, what));
  }
  return items;
}

Value dict_of(const PickleNode& node, size_t first, const std::string& what) {
  Value::Pairs pairs;
  for (size_t i = first; i + 1 < node.children.size(); i += 2) {
    pairs.emplace_back(value_of(*node.children[i], what),
                       value_of(*node.children[i + 1], what));
  }
  return Value::dict(std::move(pairs));
}

// Each code point a byte.
std::string from_latin1(const PickleNode& node, const std::string& what) {
  std::string bytes;
  for (size_t i = 0; i < node.text.size(); ++i) {
    const auto first = static_cast<uint8_t>(node.text[i]);
    if (first < 0x80) {
      bytes += node.text[i];
    } else if (first <= 0xc3) {
      const auto second = static_cast<uint8_t>(node.text[++i]);
      bytes += static_cast<char>((first & 3) << 6 | (second & 0x3f));
    } else {
      refuse(node, what, "its bytes hold a character beyond latin1");
    }
  }
  return bytes;
}

Value called(const PickleNode& node, const std::string& what) {
  const PickleNode& callable = *node.children[0];
  const auto& arguments = node.children[1]->children;
  const bool has_state = node.children[2] != nullptr;
  const std::string name = callable.kind == Kind::global ? callable.text : "";
  if (name == "collections OrderedDict" && arguments.empty() && !has_state) {
    return dict_of(node, 3, what);
  }
  const bool plain = !has_state && node.children.size() == 3;
  if (name == "_codecs encode" && plain && arguments.size() == 2 &&
      arguments[0]->kind == Kind::text && arguments[1]->text == "latin1") {
    return Value::bytes(from_latin1(*arguments[0], what));
  }
  const bool bytes = name == "__builtin__ bytes" || name == "builtins bytes";
  if (bytes && plain && arguments.empty()) return Value::bytes("");
  refuse(node, what,
         str("it would call '", name, "', which is not allowed here"));
}

}  // namespace

void write_value(PickleWriter& out, const Value& value) {
  std::visit(Writer(out), value.variant());
}

std::string pickle_of(const Value& value) {
  PickleWriter out;
  write_value(out, value);
  return out.finish();
}

Value value_of(const PickleNode& node, const std::string& what) {
  switch (node.kind) {
    case Kind::none:
      return {};
    case Kind::boolean:
      return node.integer != 0;
    case Kind::integer:
      return node.integer;
    case Kind::big_integer:
      return Value(Value::Variant(Value::BigInteger{node.text}));
    case Kind::real:
      return node.real;
    case Kind::text:
      return node.text;
    case Kind::bytes:
      return Value::bytes(node.text);
    case Kind::tuple:
      return Value::tuple(items_of(node, what));
    case Kind::list:
      return Value::list(items_of(node, what));
    case Kind::dict:
      return dict_of(node, 0, what);
    case Kind::call:
      return called(node, what);
    default:
      break;
  }
  const PickleNode& named =
      node.kind == Kind::object ? *node.children[0] : node;
  refuse(node, what,
         str("it names '", named.text, "', which is not a plain value"));
}

}  // namespace tessera::checkpoint
