#include "tessera/parallel/buckets.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "tessera/parallel/bucket_plan.h"

namespace tessera {

namespace {

constexpr int64_t kFirstBytes = 1 << 20;

/// Parameters of unlike dtypes or devices are of unlike kinds.
std::vector<BucketItem> items_of(const std::vector<at::Tensor>& parameters) {
  std::map<std::pair<at::ScalarType, std::string>, int64_t> kinds;
  std::vector<BucketItem> items;
  for (const at::Tensor& parameter : parameters) {
    const auto kind =
        std::pair(parameter.scalar_type(), parameter.device().str());
    const auto number = static_cast<int64_t>(kinds.size());
    items.push_back({static_cast<int64_t>(parameter.nbytes()),
                     kinds.try_emplace(kind, number).first->second});
  }
  return items;
}

}  // namespace

Buckets::Buckets(std::vector<at::Tensor> parameters, int64_t cap_bytes,
                 GradientMemory memory)
    : parameters_(std::move(parameters)),
      cap_bytes_(cap_bytes),
      memory_(memory),
      bucket_of_(parameters_.size()) {}

void Buckets::build(const std::vector<size_t>& order) {
  const BucketCaps caps = {std::min(kFirstBytes, cap_bytes_), cap_bytes_};
  buckets_.clear();
  for (auto& members : plan_buckets(items_of(parameters_), order, caps)) {
    std::vector<at::Tensor> tensors;
    for (const size_t i : members) {
      bucket_of_[i] = buckets_.size();
      tensors.push_back(parameters_[i]);
    }
    buckets_.emplace_back(std::move(members), std::move(tensors), memory_);
  }
}

void Buckets::begin_pass(const std::vector<bool>& expected) {
  next_ = 0;
  for (Bucket& bucket : buckets_) {
    bucket.begin_pass(static_cast<size_t>(std::ranges::count_if(
        bucket.members(), [&](size_t i) { return expected[i]; })));
  }
}

void Buckets::note_gradient(size_t i, const HookCall& call) {
  buckets_[bucket_of_[i]].note_gradient();
  for (; next_ < buckets_.size() && buckets_[next_].complete(); ++next_) {
    buckets_[next_].start(next_, next_ + 1 == buckets_.size(), call);
  }
}

void Buckets::start_all(const HookCall& call) {
  for (; next_ < buckets_.size(); ++next_) {
    buckets_[next_].start(next_, next_ + 1 == buckets_.size(), call);
  }
}

void Buckets::start_with_zeros(const HookCall& call) {
  for (size_t i = 0; i < buckets_.size(); ++i) {
    buckets_[i].start_with_zeros(i, i + 1 == buckets_.size(), call);
  }
}

void Buckets::finish(const std::vector<bool>& is_used) {
  for (Bucket& bucket : buckets_) bucket.finish(is_used);
}

void Buckets::abandon() {
  for (Bucket& bucket : buckets_) bucket.abandon();
}

}  // namespace tessera
