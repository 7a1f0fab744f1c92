#include "tessera/parallel/bucket_plan.h"

#include <algorithm>
#include <map>
#include <utility>

namespace tessera {
namespace {

/// The bucket of one kind that is being filled.
struct Open {
  std::vector<size_t> items = {};
  int64_t bytes = 0;
  int64_t cap = 0;
  size_t since = 0;  // position in the order of its first item
};

}  // namespace

std::vector<std::vector<size_t>> plan_buckets(std::span<const BucketItem> items,
                                              std::span<const size_t> order,
                                              const BucketCaps& caps) {
  std::vector<std::vector<size_t>> buckets;
  std::map<int64_t, Open> open;
  for (size_t i = 0; i < order.size(); ++i) {
    const BucketItem& item = items[order[i]];
    Open& bucket = open.try_emplace(item.kind, Open{.cap = caps.first_bytes})
                       .first->second;
    if (bucket.items.empty()) bucket.since = i;
    bucket.items.push_back(order[i]);
    bucket.bytes += item.bytes;
    if (bucket.bytes < bucket.cap) continue;
    buckets.push_back(std::move(bucket.items));
    bucket = Open{.cap = caps.rest_bytes};
  }
  std::vector<Open> left;
  for (auto& [kind, bucket] : open) {
    if (!bucket.items.empty()) left.push_back(std::move(bucket));
  }
  std::ranges::sort(left, {}, &Open::since);
  for (Open& bucket : left) buckets.push_back(std::move(bucket.items));
  return buckets;
}

}  // namespace tessera
