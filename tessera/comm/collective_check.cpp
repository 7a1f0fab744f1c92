#include "tessera/comm/collective_check.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <utility>

#include "tessera/base/environment.h"
#include "tessera/base/error.h"
#include "tessera/comm/position_table.h"

namespace tessera {
namespace {

std::vector<uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}

std::string describe_call(const RankPosition& position) {
  const CollectiveEntry& call = position.last;
  std::string text = str("rank ", position.rank, " calls ", call.kind);
  if (!call.reduction.empty()) text += str(" by ", call.reduction);
  if (call.root >= 0) text += str(" with root ", call.root);
  if (!call.unit.empty()) text += str(" of unit '", call.unit, "'");
  if (!call.dtype.empty()) {
    text += str(" (", call.numel, " ", call.dtype, " elements)");
  }
  if (!call.op.empty()) text += str(" for ", call.op);
  return text;
}

// The first that differs, or null.
const char* first_difference(const CollectiveEntry& a,
                             const CollectiveEntry& b) {
  if (a.kind != b.kind) return "kind";
  if (a.unit != b.unit) return "unit";
  if (a.dtype != b.dtype) return "dtype";
  if (a.numel != b.numel) return "size";
  if (a.reduction != b.reduction) return "operation";
  return a.root != b.root ? "root" : nullptr;
}

}  // namespace

CollectiveCheck::CollectiveCheck(c10::intrusive_ptr<c10d::Store> store,
                                 int rank)
    : store_(std::move(store)), rank_(rank) {}

std::string CollectiveCheck::next_key(const std::string& communicator,
                                      const std::vector<int>& ranks) {
  std::string group = communicator;
  for (const int rank : ranks) group += str("/", rank);
  const std::lock_guard lock(mutex_);
  return str(group, "/", ++counts_[group]);
}

std::optional<std::string> CollectiveCheck::compare(
    const CollectiveEntry& entry, const std::vector<int>& ranks) {
  const std::string key = next_key(entry.communicator, ranks);
  RankPosition own;
  own.rank = rank_;
  own.last = entry;
  const auto found = store_->compareSet(key, {}, bytes_of(to_record(own)));
  const RankPosition first =
      from_record(std::string(found.begin(), found.end()));
  const char* what = first_difference(first.last, entry);
  if (what != nullptr) {
    return str("the ranks call different collectives on '", entry.communicator,
               "'; the first difference is the ", what, ": ",
               describe_call(first), ", but ", describe_call(own),
               ". Nothing of it was exchanged.");
  }
  // Who comes last takes it away.
  const std::string count = key + "/count";
  if (store_->add(count, 1) == static_cast<int64_t>(ranks.size())) {
    store_->deleteKey(key);
    store_->deleteKey(count);
  }
  return std::nullopt;
}

bool collective_check_wanted() {
  const std::string value =
      environment::text("TESSERA_CHECK_COLLECTIVES").value_or("off");
  require<InvalidArgument>(value == "on" || value == "off", [&] {
    return str("environment: TESSERA_CHECK_COLLECTIVES is '", value,
               "'; set it to on or off, or unset it.");
  });
  return value == "on";
}

}  // namespace tessera
