#include "tessera/checkpoint/save_plan.h"

#include <algorithm>
#include <map>
#include <set>

#include "tessera/base/error.h"
#include "tessera/checkpoint/region.h"
#include "tessera/checkpoint/value_pickle.h"

namespace tessera::checkpoint {
namespace {

[[noreturn]] void refuse(const std::string& key, const std::string& why) {
  throw InvalidArgument(str("'", key, "' ", why, "."));
}

Value numbers(const std::vector<int64_t>& from) {
  return Value::list({from.begin(), from.end()});
}

std::vector<int64_t> numbers(const Value& from) {
  std::vector<int64_t> result;
  for (const Value& number : from.items()) result.push_back(number.as_int());
  return result;
}

Value encode_path(const Path& path) {
  Value::Items steps;
  for (const PathStep& step : path) {
    std::visit([&](const auto& s) { steps.emplace_back(s); }, step);
  }
  return Value::list(std::move(steps));
}

Path decode_path(const Value& steps) {
  Path path;
  for (const Value& step : steps.items()) {
    if (const auto* position = step.get<int64_t>()) {
      path.emplace_back(*position);
    } else {
      path.emplace_back(step.as_text());
    }
  }
  return path;
}

Value decode(std::string_view bytes) {
  const Pickle pickle = read_pickle(bytes, "a message of another rank");
  return value_of(pickle.root(), "a message of another rank");
}

// A box of a tensor, and the ranks that hold it.
struct Holders {
  Box box;
  std::vector<size_t> ranks;
};

struct Merged {
  OfferedTensor tensor;
  size_t first_rank = 0;
  std::vector<Holders> boxes;
};

class Planner {
 public:
  explicit Planner(const std::vector<Offer>& offers) : offers_(offers) {}

  SavePlan run() {
    plan_.of_rank.resize(offers_.size());
    load_.resize(offers_.size());
    for (size_t rank = 0; rank < offers_.size(); ++rank) {
      std::set<std::string> own;
      for (const OfferedTensor& tensor : offers_[rank].tensors) {
        check_new(own, tensor.key, rank);
        merge(tensor, rank);
      }
      for (const OfferedValue& value : offers_[rank].values) {
        check_new(own, value.key, rank);
        merge(value, rank);
      }
    }
    for (const auto& [key, value] : values_) assign_value(key, value);
    for (const auto& [key, merged] : tensors_) assign_tensor(key, merged);
    return std::move(plan_);
  }

 private:
  struct MergedValue {
    const OfferedValue* value;
    std::vector<size_t> ranks;
  };

  static void check_new(std::set<std::string>& own, const std::string& key,
                        size_t rank) {
    if (own.insert(key).second) return;
    refuse(key, str("is there twice on rank ", rank,
                    "; two paths that join to the same name cannot be saved"));
  }

  void merge(const OfferedTensor& tensor, size_t rank) {
    if (values_.contains(tensor.key)) {
      refuse(tensor.key,
             str("is a tensor on rank ", rank, " and a value on another rank"));
    }
    const auto [at, is_new] =
        tensors_.try_emplace(tensor.key, Merged{tensor, rank, {}});
    Merged& merged = at->second;
    if (merged.tensor.dtype != tensor.dtype ||
        merged.tensor.sizes != tensor.sizes ||
        merged.tensor.path != tensor.path) {
      refuse(tensor.key, str("has another dtype, size or path on rank ", rank,
                             " than on rank ", merged.first_rank));
    }
    for (const Box& box : tensor.boxes) add_box(merged, box, rank);
  }

  static void add_box(Merged& merged, const Box& box, size_t rank) {
    const auto& sizes = merged.tensor.sizes;
    const auto shared = intersection(box, whole_box(sizes));
    if (box.offsets.size() != sizes.size() || (box.numel() > 0 && !shared) ||
        (shared && *shared != box)) {
      refuse(merged.tensor.key,
             str("has a box on rank ", rank, " that lies outside of it"));
    }
    if (box.numel() == 0 && !sizes.empty() && whole_box(sizes).numel() > 0) {
      return;  // an empty shard: nothing to write, and readers do not ask
    }
    for (Holders& holders : merged.boxes) {
      if (holders.box == box) {
        holders.ranks.push_back(rank);
        return;
      }
    }
    merged.boxes.push_back({box, {rank}});
  }

  void merge(const OfferedValue& value, size_t rank) {
    if (tensors_.contains(value.key)) {
      refuse(value.key,
             str("is a value on rank ", rank, " and a tensor on another rank"));
    }
    MergedValue& merged =
        values_.try_emplace(value.key, MergedValue{&value, {}}).first->second;
    if (merged.value->digest != value.digest) {
      refuse(value.key,
             str("is ", merged.value->shown, " on rank ", merged.ranks.front(),
                 " and ", value.shown, " on rank ", rank,
                 "; a checkpoint has one value for a name. Save what differs "
                 "under a name of each rank's own"));
    }
    merged.ranks.push_back(rank);
  }

  size_t least_loaded(const std::vector<size_t>& ranks) const {
    return *std::ranges::min_element(ranks, {},
                                     [&](size_t rank) { return load_[rank]; });
  }

  void assign_value(const std::string& key, const MergedValue& merged) {
    const size_t rank = least_loaded(merged.ranks);
    load_[rank] += 1500;  // what such an item takes
    plan_.of_rank[rank].push_back({.key = key, .is_value = true});
    plan_.metadata.values[key] = {};
    plan_.metadata.paths[key] = merged.value->path;
  }

  void assign_tensor(const std::string& key, const Merged& merged) {
    StoredTensor stored{merged.tensor.dtype, merged.tensor.sizes, {}};
    check_coverage(key, merged);
    for (const Holders& holders : merged.boxes) {
      const size_t rank = least_loaded(holders.ranks);
      load_[rank] += *num_bytes_of(stored.dtype, holders.box.lengths) + 8192;
      plan_.of_rank[rank].push_back(
          {.key = key, .is_value = false, .box = stored.boxes.size()});
      stored.boxes.push_back({holders.box});
    }
    plan_.metadata.tensors[key] = std::move(stored);
    plan_.metadata.paths[key] = merged.tensor.path;
  }

  void check_coverage(const std::string& key, const Merged& merged) const {
    std::vector<Box> boxes;
    int64_t covered = 0;
    for (const Holders& holders : merged.boxes) {
      boxes.push_back(holders.box);
      covered += holders.box.numel();
    }
    if (const auto twice = find_shared(boxes)) {
      refuse(key, str("has boxes that overlap, on rank ",
                      merged.boxes[twice->first].ranks.front(), " and rank ",
                      merged.boxes[twice->second].ranks.front()));
    }
    const int64_t whole = whole_box(merged.tensor.sizes).numel();
    if (covered != whole) {
      refuse(key, str("would not be saved completely: all ranks together hold ",
                      covered, " of its ", whole, " elements"));
    }
  }

  const std::vector<Offer>& offers_;
  std::map<std::string, Merged> tensors_;
  std::map<std::string, MergedValue> values_;
  std::vector<uint64_t> load_;  // bytes each rank has to write so far
  SavePlan plan_;
};

}  // namespace

std::string encode_offer(const Offer& offer) {
  Value::Items tensors;
  for (const OfferedTensor& tensor : offer.tensors) {
    Value::Items boxes;
    for (const Box& box : tensor.boxes) {
      boxes.push_back(
          Value::tuple({numbers(box.offsets), numbers(box.lengths)}));
    }
    tensors.push_back(
        Value::tuple({encode_path(tensor.path), static_cast<int>(tensor.dtype),
                      numbers(tensor.sizes), Value::list(std::move(boxes))}));
  }
  Value::Items values;
  for (const OfferedValue& value : offer.values) {
    values.push_back(Value::tuple(
        {encode_path(value.path), value.shown, Value::bytes(value.digest)}));
  }
  return pickle_of(Value::tuple(
      {Value::list(std::move(tensors)), Value::list(std::move(values))}));
}

Offer decode_offer(std::string_view bytes) {
  const Value all = decode(bytes);
  Offer offer;
  for (const Value& tensor : all.items().at(0).items()) {
    const auto& parts = tensor.items();
    OfferedTensor& decoded = offer.tensors.emplace_back();
    decoded.path = decode_path(parts.at(0));
    decoded.key = key_of(decoded.path);
    decoded.dtype = kDtypes.at(static_cast<size_t>(parts.at(1).as_int())).dtype;
    decoded.sizes = numbers(parts.at(2));
    for (const Value& box : parts.at(3).items()) {
      decoded.boxes.push_back(
          {numbers(box.items().at(0)), numbers(box.items().at(1))});
    }
  }
  for (const Value& value : all.items().at(1).items()) {
    OfferedValue& decoded = offer.values.emplace_back();
    decoded.path = decode_path(value.items().at(0));
    decoded.key = key_of(decoded.path);
    decoded.shown = value.items().at(1).as_text();
    decoded.digest = value.items().at(2).as_bytes();
  }
  return offer;
}

SavePlan plan_save(const std::vector<Offer>& offers) {
  return Planner(offers).run();
}

std::string encode_written(const std::vector<WrittenItem>& items) {
  Value::Items all;
  for (const WrittenItem& written : items) {
    all.push_back(Value::tuple(
        {written.item.key, written.item.is_value, written.item.box,
         written.place.file, written.place.offset, written.place.num_bytes}));
  }
  return pickle_of(Value::list(std::move(all)));
}

std::vector<WrittenItem> decode_written(std::string_view bytes) {
  std::vector<WrittenItem> items;
  const Value all = decode(bytes);
  for (const Value& written : all.items()) {
    const auto& parts = written.items();
    items.push_back(
        {{.key = parts.at(0).as_text(),
          .is_value = parts.at(1).as_bool(),
          .box = static_cast<size_t>(parts.at(2).as_int())},
         {.file = parts.at(3).as_text(),
          .offset = static_cast<uint64_t>(parts.at(4).as_int()),
          .num_bytes = static_cast<uint64_t>(parts.at(5).as_int())}});
  }
  return items;
}

}  // namespace tessera::checkpoint
