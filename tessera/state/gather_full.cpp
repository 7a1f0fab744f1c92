#include "tessera/state/gather_full.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/comm/communicator.h"
#include "tessera/state/box_view.h"
#include "tessera/state/state_message.h"

namespace tessera {
namespace {

constexpr int64_t kBatchBytes = int64_t{64} << 20;  // of all ranks

class Gather {
 public:
  Gather(const StateGroup& group, const std::string& what, StateDict own,
         std::vector<StateDict> layouts, GatherTo to)
      : group_(group),
        what_(what),
        own_(std::move(own)),
        layouts_(std::move(layouts)),
        to_(to),
        receives_(to == GatherTo::every_rank || group.peers.rank == 0) {}

  StateDict run() {
    check();
    StateDict full = receives_ ? whole_dict() : StateDict();
    std::vector<size_t> batch;
    int64_t batch_bytes = 0;
    for (size_t i = 0; i < own_.size(); ++i) {
      if (!is_tensor(i)) continue;
      if (is_whole_everywhere(i)) {
        if (receives_) place(own_tensor(i), own_tensor(i).local, full, i);
        continue;
      }
      if (!batch.empty() && batch_bytes + padded_bytes(i) > kBatchBytes) {
        move(batch, full);
        batch.clear();
        batch_bytes = 0;
      }
      batch.push_back(i);
      batch_bytes += padded_bytes(i);
    }
    if (!batch.empty()) move(batch, full);
    return full;
  }

 private:
  // --- what the ranks hold ---------------------------------------------------

  [[nodiscard]] bool is_tensor(size_t i) const {
    return std::holds_alternative<StateTensor>(own_[i].leaf);
  }
  [[nodiscard]] const StateTensor& own_tensor(size_t i) const {
    return std::get<StateTensor>(own_[i].leaf);
  }
  [[nodiscard]] const StateTensor& part(size_t rank, size_t i) const {
    return std::get<StateTensor>(layouts_[rank][i].leaf);
  }
  [[nodiscard]] int64_t num_bytes(size_t rank, size_t i) const {
    return aligned(elements_of(part(rank, i).boxes) *
                   part(rank, i).local.element_size());
  }
  // In the buffer of a gather, where every rank has equally much.
  [[nodiscard]] int64_t padded_bytes(size_t i) const {
    int64_t most = 0;
    for (size_t rank = 0; rank < layouts_.size(); ++rank) {
      most = std::max(most, num_bytes(rank, i));
    }
    return most * static_cast<int64_t>(layouts_.size());
  }
  [[nodiscard]] bool is_whole_everywhere(size_t i) const {
    return std::ranges::all_of(layouts_, [&](const StateDict& layout) {
      const auto& tensor = std::get<StateTensor>(layout[i].leaf);
      return elements_of(tensor.boxes) == elements_of(tensor.sizes);
    });
  }

  // --- every rank finds the same errors --------------------------------------

  void check() const {
    for (size_t rank = 1; rank < layouts_.size(); ++rank) check_same(rank);
    for (size_t i = 0; i < own_.size(); ++i) {
      if (is_tensor(i)) check_covered(i);
    }
  }

  [[noreturn]] void refuse(const std::string& why) const {
    throw InvalidArgument(str(what_, ": ", why, "."));
  }

  void check_same(size_t rank) const {
    const StateDict& first = layouts_[0];
    const StateDict& other = layouts_[rank];
    const size_t shared = std::min(first.size(), other.size());
    for (size_t i = 0; i < shared; ++i) {
      const std::string key = key_of(first[i].path);
      if (first[i].path != other[i].path) {
        refuse(str("rank 0 has '", key, "' where rank ", rank, " has '",
                   key_of(other[i].path), "'"));
      }
      if (!is_same(first[i].leaf, other[i].leaf)) {
        refuse(str("'", key, "' differs between rank 0 and rank ", rank,
                   ": another dtype, size or value"));
      }
    }
    if (first.size() == other.size()) return;
    const StateDict& longer = first.size() > shared ? first : other;
    refuse(str("only rank ", first.size() > shared ? 0 : rank, " has '",
               key_of(longer[shared].path), "'"));
  }

  static bool is_same(const Leaf& a, const Leaf& b) {
    if (a.index() != b.index()) return false;
    const auto* tensor = std::get_if<StateTensor>(&a);
    if (tensor == nullptr) return std::get<Value>(a) == std::get<Value>(b);
    const auto& other = std::get<StateTensor>(b);
    return tensor->sizes == other.sizes &&
           tensor->local.scalar_type() == other.local.scalar_type();
  }

  void check_covered(size_t i) const {
    std::vector<Box> boxes;
    for (size_t rank = 0; rank < layouts_.size(); ++rank) {
      for (const Box& box : part(rank, i).boxes) {
        if (std::ranges::find(boxes, box) == boxes.end()) boxes.push_back(box);
      }
    }
    const int64_t held = elements_of(boxes);
    const int64_t all = elements_of(part(0, i).sizes);
    if (held == all) return;
    refuse(str("the ranks hold ", held, " of the ", all, " elements of '",
               key_of(own_[i].path), "'"));
  }

  // --- the tensors -----------------------------------------------------------

  StateDict whole_dict() const {
    StateDict full = own_;
    for (StateEntry& entry : full) {
      auto* tensor = std::get_if<StateTensor>(&entry.leaf);
      if (tensor == nullptr) continue;
      const bool host = to_ == GatherTo::host_of_rank0;
      *tensor = state_tensor(at::empty(
          tensor->sizes,
          tensor->local.options().device(host ? c10::Device(c10::kCPU)
                                              : tensor->local.device())));
    }
    return full;
  }

  // Copies a part, which lies as `layout` says, to where it belongs.
  static void place(const StateTensor& layout, const at::Tensor& elements,
                    const StateDict& full, size_t i) {
    const at::Tensor& whole = std::get<StateTensor>(full[i].leaf).local;
    for (size_t box = 0; box < layout.boxes.size(); ++box) {
      box_of_whole(whole, layout.boxes[box])
          .copy_(box_of_part(elements, layout.boxes, box));
    }
  }

  void move(const std::vector<size_t>& batch, const StateDict& full) {
    const auto num_ranks = static_cast<int64_t>(layouts_.size());
    int64_t most = 0;
    for (size_t rank = 0; rank < layouts_.size(); ++rank) {
      int64_t bytes = 0;
      for (const size_t i : batch) bytes += num_bytes(rank, i);
      most = std::max(most, bytes);
    }
    const auto options =
        at::TensorOptions().dtype(at::kByte).device(group_.device);
    const at::Tensor input = at::empty({most}, options);
    pack(batch, input);
    const at::Tensor output = at::empty({num_ranks * most}, options);
    const GatherCall call{output, input};
    group_.communicator
        ->all_gather(std::span(&call, 1), {.phase = kStatePhase})
        .wait();
    if (!receives_) return;
    for (int64_t rank = 0; rank < num_ranks; ++rank) {
      unpack(batch, static_cast<size_t>(rank),
             output.narrow(0, rank * most, most), full);
    }
  }

  void pack(const std::vector<size_t>& batch, const at::Tensor& input) const {
    int64_t at = 0;
    for (const size_t i : batch) {
      const StateTensor& own = own_tensor(i);
      const int64_t count = elements_of(own.boxes);
      if (count > 0) {
        elements_at(input, at, own.local.scalar_type(), count)
            .copy_(own.local.reshape(-1));
      }
      at += num_bytes(static_cast<size_t>(group_.peers.rank), i);
    }
  }

  void unpack(const std::vector<size_t>& batch, size_t rank,
              const at::Tensor& bytes, const StateDict& full) const {
    int64_t at = 0;
    for (const size_t i : batch) {
      const StateTensor& tensor = part(rank, i);
      const int64_t count = elements_of(tensor.boxes);
      if (count > 0) {
        const at::Tensor elements =
            elements_at(bytes, at, tensor.local.scalar_type(), count);
        place(tensor, elements, full, i);
      }
      at += num_bytes(rank, i);
    }
  }

  const StateGroup& group_;
  const std::string& what_;
  StateDict own_;
  std::vector<StateDict> layouts_;
  GatherTo to_;
  bool receives_;
};

}  // namespace

StateDict gather_full(const StateGroup& group, const std::string& what,
                      const std::function<StateDict()>& collect, GatherTo to) {
  StateDict own;
  const std::vector<std::string> messages = all_or_none(group.peers, what, [&] {
    own = collect();
    return encode_layout(own);
  });
  std::vector<StateDict> layouts;
  layouts.reserve(messages.size());
  for (const std::string& message : messages) {
    layouts.push_back(decode_layout(message));
  }
  return Gather(group, what, std::move(own), std::move(layouts), to).run();
}

}  // namespace tessera
