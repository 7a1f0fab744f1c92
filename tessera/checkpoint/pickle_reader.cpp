// The stack machine that reads pickles. It makes nodes and calls nothing.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/checkpoint/pickle.h"
#include "tessera/checkpoint/utf8.h"

namespace tessera::checkpoint {

using Kind = PickleNode::Kind;

class PickleReader {
 public:
  PickleReader(std::string_view bytes, const std::string& what,
               const PickleLimits& limits)
      : bytes_(bytes), what_(what), limits_(limits) {}

  Pickle run() {
    require<CheckpointError>(bytes_.size() < UINT32_MAX, [&] {
      return str("pickle of ", what_, ": it is longer than 4 GiB.");
    });
    while (!stopped_) {
      opcode_at_ = at_;
      opcode_ = static_cast<uint8_t>(take(1)[0]);
      step();
    }
    if (at_ != bytes_.size()) refuse("bytes follow the end of the program");
    return std::move(pickle_);
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    static constexpr std::string_view kDigits = "0123456789abcdef";
    throw CheckpointError(str("pickle of ", what_, ": opcode 0x",
                              kDigits[opcode_ >> 4], kDigits[opcode_ & 15],
                              " at byte ", opcode_at_, ": ", why, "."));
  }

  std::string_view take(uint64_t count) {
    if (count > bytes_.size() - at_) {
      refuse(str("it needs ", count, " bytes; ", bytes_.size() - at_,
                 " are left"));
    }
    const std::string_view taken = bytes_.substr(at_, count);
    at_ += count;
    return taken;
  }

  template <class T>
  T little() {
    static_assert(std::endian::native == std::endian::little);
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }

  std::string_view line() {
    const size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) refuse("its line does not end");
    const std::string_view text = take(end - at_);
    (void)take(1);
    return text;
  }

  // --- nodes ---------------------------------------------------------------

  PickleNode& make(Kind kind) {
    if (pickle_.nodes_.size() >= limits_.most_nodes) refuse("too many nodes");
    PickleNode& node = pickle_.nodes_.emplace_back();
    node.kind = kind;
    node.offset = static_cast<uint32_t>(opcode_at_);
    return node;
  }

  void push(PickleNode& node) { stack_.push_back(&node); }

  void push_text(Kind kind, std::string_view text) {
    if (kind == Kind::text && !is_valid_utf8(text)) {
      refuse("its text is not valid UTF-8");
    }
    PickleNode& node = make(kind);
    node.text = text;
    push(node);
  }

  void push_integer(Kind kind, int64_t value) {
    PickleNode& node = make(kind);
    node.integer = value;
    push(node);
  }

  void push_long(uint64_t count) {
    const std::string_view bytes = take(count);
    if (count > 8) return push_text(Kind::big_integer, bytes);
    uint64_t value = 0;
    std::memcpy(&value, bytes.data(), count);
    const bool negative = count > 0 && (bytes[count - 1] & 0x80) != 0;
    if (negative && count < 8) value |= ~uint64_t{0} << (8 * count);
    push_integer(Kind::integer, static_cast<int64_t>(value));
  }

  void push_real() {
    uint64_t bits = 0;
    for (const char byte : take(8)) {
      bits = bits << 8 | static_cast<uint8_t>(byte);
    }
    PickleNode& node = make(Kind::real);
    node.real = std::bit_cast<double>(bits);
    push(node);
  }

  // Makes `child` a part of `node`. What is part of something cannot change any
  // more, so no structure contains itself, and depth and weight are final.
  void adopt(PickleNode& node, PickleNode* child) {
    if (child == &node) refuse("it makes something part of itself");
    child->sealed = true;
    const size_t depth = std::max<size_t>(node.depth, child->depth + 1);
    if (depth > limits_.most_depth) refuse("it nests too deeply");
    node.depth = static_cast<uint16_t>(depth);
    node.weight += child->weight;
    if (node.weight > limits_.most_nodes) refuse("it repeats itself too often");
    node.children.push_back(child);
  }

  // --- the stack -----------------------------------------------------------

  [[nodiscard]] size_t bottom() const {
    return marks_.empty() ? 0 : marks_.back();
  }

  PickleNode* pop() {
    if (stack_.size() <= bottom()) refuse("the stack is empty");
    PickleNode* top = stack_.back();
    stack_.pop_back();
    return top;
  }

  PickleNode& top() {
    if (stack_.size() <= bottom()) refuse("the stack is empty");
    return *stack_.back();
  }

  PickleNode& changeable_top() {
    PickleNode& node = top();
    if (node.sealed) refuse("it changes what is part of something already");
    return node;
  }

  std::vector<PickleNode*> pop_to_mark() {
    if (marks_.empty()) refuse("there is no mark");
    const auto begin =
        stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<PickleNode*> items(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return items;
  }

  void push_made_of(Kind kind, const std::vector<PickleNode*>& items) {
    if (kind == Kind::dict && items.size() % 2 != 0) refuse("odd items");
    PickleNode& node = make(kind);
    node.children.reserve(items.size());
    for (PickleNode* item : items) adopt(node, item);
    push(node);
  }

  void push_tuple(size_t count) {
    std::vector<PickleNode*> items(count);
    for (size_t i = count; i-- > 0;) items[i] = pop();
    push_made_of(Kind::tuple, items);
  }

  void append(const std::vector<PickleNode*>& items, Kind expected) {
    PickleNode& node = changeable_top();
    if (node.kind != expected) refuse("it appends to what is no list");
    for (PickleNode* item : items) adopt(node, item);
  }

  void set_items(const std::vector<PickleNode*>& items) {
    PickleNode& node = changeable_top();
    if (node.kind != Kind::dict && node.kind != Kind::call) {
      refuse("it sets items of what is no dict");
    }
    if (items.size() % 2 != 0) refuse("odd items");
    for (PickleNode* item : items) adopt(node, item);
  }

  void push_call(Kind kind) {
    PickleNode* arguments = pop();
    PickleNode* callable = pop();
    if (arguments->kind != Kind::tuple) refuse("its arguments are no tuple");
    PickleNode& node = make(kind);
    adopt(node, callable);
    adopt(node, arguments);
    node.children.push_back(nullptr);
    push(node);
  }

  void build() {
    PickleNode* state = pop();
    PickleNode& node = changeable_top();
    if (node.kind != Kind::object && node.kind != Kind::call) {
      refuse("it gives state to what is no object");
    }
    if (node.children[2] != nullptr) refuse("it gives state twice");
    adopt(node, state);
    node.children[2] = node.children.back();
    node.children.pop_back();
  }

  void push_stack_global() {
    const PickleNode* name = pop();
    const PickleNode* module = pop();
    if (name->kind != Kind::text || module->kind != Kind::text) {
      refuse("its names are no texts");
    }
    push_text(Kind::global, module->text + " " + name->text);
  }

  void push_global() {
    const std::string module(line());
    push_text(Kind::global, module + " " + std::string(line()));
  }

  // --- the memo ------------------------------------------------------------

  void put(uint64_t index) {
    // Writers count from 0, and each entry takes an opcode.
    if (index >= at_) refuse("its memo number is too large");
    if (index >= memo_.size()) memo_.resize(index + 1);
    memo_[index] = &top();
    ++num_memoized_;
  }

  void get(uint64_t index) {
    if (index >= memo_.size() || memo_[index] == nullptr) {
      refuse(str("there is no memo entry ", index));
    }
    stack_.push_back(memo_[index]);
  }

  void protocol() {
    const int number = little<uint8_t>();
    if (number < 2 || number > 5) refuse(str("protocol ", number));
  }

  void stop() {
    PickleNode* root = pop();
    if (!stack_.empty() || !marks_.empty()) refuse("values are left over");
    pickle_.root_ = root;
    stopped_ = true;
  }

  void step() {
    if (!step_leaf() && !step_container()) refuse("it is not allowed here");
  }

  bool step_leaf() {
    switch (opcode_) {
      case 0x80:
        return protocol(), true;
      case 0x95:
        return (void)take(8), true;  // FRAME
      case 'N':
        return push(make(Kind::none)), true;
      case 0x88:
        return push_integer(Kind::boolean, 1), true;
      case 0x89:
        return push_integer(Kind::boolean, 0), true;
      case 'J':
        return push_integer(Kind::integer, little<int32_t>()), true;
      case 'K':
        return push_integer(Kind::integer, little<uint8_t>()), true;
      case 'M':
        return push_integer(Kind::integer, little<uint16_t>()), true;
      case 0x8a:
        return push_long(little<uint8_t>()), true;
      case 0x8b:
        return push_long(little<uint32_t>()), true;
      case 'G':
        return push_real(), true;
      case 0x8c:
        return push_text(Kind::text, take(little<uint8_t>())), true;
      case 'X':
        return push_text(Kind::text, take(little<uint32_t>())), true;
      case 0x8d:
        return push_text(Kind::text, take(little<uint64_t>())), true;
      case 'U':
        return push_text(Kind::text, take(little<uint8_t>())), true;
      case 'C':
        return push_text(Kind::bytes, take(little<uint8_t>())), true;
      case 'B':
        return push_text(Kind::bytes, take(little<uint32_t>())), true;
      case 0x8e:
        return push_text(Kind::bytes, take(little<uint64_t>())), true;
      case 'c':
        return push_global(), true;
      case 0x93:
        return push_stack_global(), true;
      case 'q':
        return put(little<uint8_t>()), true;
      case 'r':
        return put(little<uint32_t>()), true;
      case 0x94:
        return put(num_memoized_), true;
      case 'h':
        return get(little<uint8_t>()), true;
      case 'j':
        return get(little<uint32_t>()), true;
      default:
        return false;
    }
  }

  bool step_container() {
    switch (opcode_) {
      case '.':
        return stop(), true;
      case '(':
        return marks_.push_back(stack_.size()), true;
      case '0':
        return (void)pop(), true;
      case '1':
        return (void)pop_to_mark(), true;
      case ')':
        return push_made_of(Kind::tuple, {}), true;
      case 0x85:
        return push_tuple(1), true;
      case 0x86:
        return push_tuple(2), true;
      case 0x87:
        return push_tuple(3), true;
      case 't':
        return push_made_of(Kind::tuple, pop_to_mark()), true;
      case ']':
        return push_made_of(Kind::list, {}), true;
      case 'l':
        return push_made_of(Kind::list, pop_to_mark()), true;
      case 'a':
        return append({pop()}, Kind::list), true;
      case 'e':
        return append(pop_to_mark(), Kind::list), true;
      case '}':
        return push_made_of(Kind::dict, {}), true;
      case 'd':
        return push_made_of(Kind::dict, pop_to_mark()), true;
      case 's':
        return set_pair(), true;
      case 'u':
        return set_items(pop_to_mark()), true;
      case 0x8f:
        return push_made_of(Kind::set, {}), true;
      case 0x90:
        return append(pop_to_mark(), Kind::set), true;
      case 0x91:
        return push_made_of(Kind::set, pop_to_mark()), true;
      case 0x81:
        return push_call(Kind::object), true;
      case 'R':
        return push_call(Kind::call), true;
      case 'b':
        return build(), true;
      case 'Q':
        return push_made_of(Kind::persistent_id, {pop()}), true;
      default:
        return false;
    }
  }

  void set_pair() {
    PickleNode* value = pop();
    PickleNode* key = pop();
    set_items({key, value});
  }

  std::string_view bytes_;
  const std::string& what_;
  const PickleLimits& limits_;
  size_t at_ = 0;
  size_t opcode_at_ = 0;
  uint8_t opcode_ = 0;
  bool stopped_ = false;
  Pickle pickle_;
  std::vector<PickleNode*> stack_;
  std::vector<size_t> marks_;
  std::vector<PickleNode*> memo_;
  uint64_t num_memoized_ = 0;
};

Pickle read_pickle(std::string_view bytes, const std::string& what,
                   const PickleLimits& limits) {
  return PickleReader(bytes, what, limits).run();
}

}  // namespace tessera::checkpoint
