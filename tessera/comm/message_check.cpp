#include "tessera/comm/message_check.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/position_table.h"

namespace tessera {
namespace {

std::string link_of(const MessageEnd& end) {
  return str(end.group, " ", end.source, ">", end.target);
}

RankPosition record_of(const MessageEnd& end, int rank) {
  RankPosition record;
  record.rank = rank;
  record.last.communicator = link_of(end);
  record.last.kind = "message";
  record.last.op = end.call;
  record.last.numel = end.numel;
  record.last.dtype = c10::toString(end.dtype);
  return record;
}

// The first that differs, or null.
const char* first_difference(const CollectiveEntry& a,
                             const CollectiveEntry& b) {
  if (a.dtype != b.dtype) return "dtype";
  return a.numel != b.numel ? "size" : nullptr;
}

std::string describe(const RankPosition& end) {
  return str("rank ", end.rank, " calls ", end.last.op, " of ", end.last.numel,
             " ", end.last.dtype, " elements");
}

}  // namespace

MessageCheck::MessageCheck(c10::intrusive_ptr<c10d::Store> store, int rank)
    : store_(std::move(store)), rank_(rank) {}

std::string MessageCheck::next_key(const MessageEnd& end, int64_t& number) {
  const std::lock_guard lock(mutex_);
  if (end.call == "recv") {
    const std::string receiver =
        str(end.group, "/", end.backend, "/", end.target, "/", end.tag);
    if (end.source == MessageEnd::kFromAny) from_any_.insert(receiver);
    if (from_any_.contains(receiver)) return "";
  }
  const std::string link = str(link_of(end), "/", end.backend, "/", end.tag);
  number = ++counts_[link];
  return str(link, "/", number);
}

std::optional<std::string> MessageCheck::compare(const MessageEnd& end) {
  int64_t number = 0;
  const std::string key = next_key(end, number);
  if (key.empty()) return std::nullopt;
  const RankPosition own = record_of(end, rank_);
  const std::string text = to_record(own);
  const std::vector<uint8_t> bytes(text.begin(), text.end());
  const auto found = store_->compareSet(key, {}, bytes);
  if (found == bytes) return std::nullopt;
  const RankPosition other =
      from_record(std::string(found.begin(), found.end()));
  store_->deleteKey(key);
  const char* what = first_difference(other.last, own.last);
  if (what == nullptr) return std::nullopt;
  return str("the two ends of message ", number, " on '", own.last.communicator,
             "' with tag ", end.tag,
             " are unlike; the first difference is the ", what, ": ",
             describe(other), ", but ", describe(own),
             ". Nothing of it was exchanged.");
}

}  // namespace tessera
