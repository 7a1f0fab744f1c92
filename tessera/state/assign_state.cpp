#include "tessera/state/assign_state.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/fnv_hash.h"
#include "tessera/state/broadcast_full.h"
#include "tessera/state/state_group.h"
#include "tessera/state/state_message.h"

namespace tessera {
namespace {

std::map<std::string, const StateTensor*> tensors_of(const StateDict& dict) {
  std::map<std::string, const StateTensor*> tensors;
  for (const StateEntry& entry : dict) {
    const auto* tensor = std::get_if<StateTensor>(&entry.leaf);
    tensors[key_of(entry.path)] = tensor;  // null for a value
  }
  return tensors;
}

std::string show(const std::vector<int64_t>& sizes) {
  std::string out = "[";
  for (const int64_t size : sizes) {
    out += (out.size() > 1 ? ", " : "") + str(size);
  }
  return out + "]";
}

class Assignment {
 public:
  Assignment(torch::nn::Module& model, std::string what, const StateDict& given,
             const StateDictOptions& options)
      : group_(state_group(model, options.world)),
        what_(std::move(what)),
        given_(given),
        options_(options) {}

  // Compares everything on all ranks; then copies.
  Assigned run(const FindTargets& find) {
    Assigned result{.layout = agree_on_layout(), .targets = {}};
    const auto given = tensors_of(result.layout);
    StateDict filled;
    const std::vector<std::string> keys = all_or_none(group_.peers, what_, [&] {
      result.targets = find(result.layout);
      check_report(result.targets.report);
      for (const StateEntry& entry : result.targets.tensors) {
        if (!given.contains(key_of(entry.path))) continue;
        check(entry, given);
        filled.push_back(entry);
      }
      return joined_keys(filled);
    });
    check_same_keys(keys);
    check_same_values(filled);
    copy(filled, given);
    return result;
  }

 private:
  [[nodiscard]] bool is_first() const { return group_.peers.rank == 0; }

  // Rank 0's dict, if whole tensors are given; else this rank's own.
  StateDict agree_on_layout() {
    const std::vector<std::string> all = all_or_none(group_.peers, what_, [&] {
      check_options();
      const bool told = options_.full_state_dict &&
                        (is_first() || !options_.broadcast_from_rank0);
      return told ? encode_layout(given_) : std::string();
    });
    if (!options_.full_state_dict) return given_;
    if (options_.broadcast_from_rank0) return decode_layout(all[0]);
    for (size_t rank = 1; rank < all.size(); ++rank) {
      check_same_dict(decode_layout(all[0]), decode_layout(all[rank]), rank);
    }
    return decode_layout(all[0]);
  }

  void check_options() const {
    require<InvalidArgument>(
        options_.full_state_dict || !options_.broadcast_from_rank0,
        [] { return str("broadcast_from_rank0 needs full_state_dict."); });
    std::set<std::string> keys;
    for (const StateEntry& entry : given_) {
      require<InvalidArgument>(keys.insert(key_of(entry.path)).second, [&] {
        return str("'", key_of(entry.path), "' is there twice.");
      });
    }
  }

  void check_same_dict(const StateDict& first, const StateDict& other,
                       size_t rank) const {
    const auto theirs = tensors_of(other);
    for (const auto& [key, tensor] : tensors_of(first)) {
      require<InvalidArgument>(theirs.contains(key), [&, &key = key] {
        return str(what_, ": rank ", rank, " lacks '", key,
                   "', which rank 0 has. Give the same dict on all ranks, or "
                   "use broadcast_from_rank0.");
      });
    }
    require<InvalidArgument>(theirs.size() == tensors_of(first).size(), [&] {
      return str(what_, ": rank ", rank, " has more keys than rank 0.");
    });
  }

  void check_report(const KeyReport& report) const {
    if (!options_.strict) return;
    std::string text;
    if (!report.missing.empty()) {
      text += str("the dict lacks ", show_keys(report.missing), ". ");
    }
    if (!report.unexpected.empty()) {
      text += str("the dict has ", show_keys(report.unexpected),
                  ", which nothing here is called. ");
    }
    require<InvalidArgument>(text.empty(), [&] {
      return str(text, "With .strict = false such are left as they are.");
    });
  }

  void check(const StateEntry& entry,
             const std::map<std::string, const StateTensor*>& given) const {
    const std::string key = key_of(entry.path);
    const StateTensor* tensor = given.at(key);
    const auto& wanted = std::get<StateTensor>(entry.leaf);
    require<InvalidArgument>(tensor != nullptr, [&] {
      return str("'", key, "' is a tensor here and a value in the dict.");
    });
    require<InvalidArgument>(tensor->sizes == wanted.sizes, [&] {
      return str("'", key, "' has size ", show(tensor->sizes),
                 " in the dict; expected ", show(wanted.sizes), ".");
    });
    if (options_.full_state_dict || is_unknown(*tensor)) return;
    require<InvalidArgument>(tensor->boxes == wanted.boxes, [&] {
      return str("'", key,
                 "' is cut otherwise in the dict than here. Whole tensors are "
                 "given with full_state_dict.");
    });
  }

  // A step of a parameter of which this rank holds nothing.
  static bool is_unknown(const StateTensor& tensor) {
    return tensor.sizes.empty() && tensor.boxes.empty();
  }

  [[nodiscard]] std::string joined_keys(const StateDict& tensors) const {
    if (!options_.full_state_dict) return "";
    std::string keys;
    for (const StateEntry& entry : tensors) keys += key_of(entry.path) + "\n";
    return keys;
  }

  // Where every rank gives whole tensors, what rank 0 gives is taken: another
  // rank's would be lost without a word.
  void check_same_values(const StateDict& tensors) const {
    if (!options_.full_state_dict || options_.broadcast_from_rank0 ||
        group_.peers.size == 1) {
      return;
    }
    const auto own = tensors_of(given_);
    std::string hashes;
    for (const StateEntry& entry : tensors) {
      const at::Tensor host =
          own.at(key_of(entry.path))->local.cpu().contiguous();
      hashes += str(hash_bytes(host.const_data_ptr(), host.nbytes()), "\n");
    }
    const std::vector<std::string> all = group_.peers.exchange(hashes);
    for (size_t rank = 1; rank < all.size(); ++rank) {
      const size_t differs = std::mismatch(all[0].begin(), all[0].end(),
                                           all[rank].begin(), all[rank].end())
                                 .first -
                             all[0].begin();
      if (differs == all[0].size() && all[rank].size() == differs) continue;
      const auto index = static_cast<size_t>(
          std::count(all[0].begin(),
                     all[0].begin() + static_cast<ptrdiff_t>(differs), '\n'));
      throw InvalidArgument(
          str(what_, ": '", key_of(tensors.at(index).path), "' on rank ", rank,
              " has other values than on rank 0, whose values all ranks would "
              "get. Give the same on all ranks, or say so by "
              "broadcast_from_rank0."));
    }
  }

  // Else the ranks would move different tensors.
  void check_same_keys(const std::vector<std::string>& keys) const {
    for (size_t rank = 1; rank < keys.size(); ++rank) {
      require<InvalidArgument>(keys[rank] == keys[0], [&] {
        return str(what_, ": rank ", rank,
                   " has other parameters than rank 0, or in another order.");
      });
    }
  }

  void copy(const StateDict& tensors,
            const std::map<std::string, const StateTensor*>& layout) const {
    const auto own = tensors_of(given_);
    for (const StateEntry& entry : tensors) {
      const std::string key = key_of(entry.path);
      const auto& target = std::get<StateTensor>(entry.leaf);
      if (!options_.full_state_dict) {
        const StateTensor& from = *own.at(key);
        if (!is_unknown(from)) target.local.copy_(from.local);
        continue;
      }
      at::Tensor whole;
      if (is_first()) whole = own.at(key)->local.reshape(target.sizes);
      broadcast_full(group_, whole, layout.at(key)->local.scalar_type(),
                     target);
    }
  }

  StateGroup group_;
  std::string what_;
  const StateDict& given_;
  const StateDictOptions& options_;
};

}  // namespace

Assigned assign_state(torch::nn::Module& model, const std::string& what,
                      const StateDict& given, const StateDictOptions& options,
                      const FindTargets& find) {
  return Assignment(model, what, given, options).run(find);
}

}  // namespace tessera
