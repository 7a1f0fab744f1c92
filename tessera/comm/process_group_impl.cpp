#include "tessera/comm/process_group_impl.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>

namespace tessera::distributed {
namespace {

// What Gloo computes with; complex numbers go as pairs.
constexpr std::array kGlooTypes = {c10::kFloat,    c10::kDouble, c10::kHalf,
                                   c10::kBFloat16, c10::kChar,   c10::kByte,
                                   c10::kBool,     c10::kInt,    c10::kLong};

bool says(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

void ProcessGroup::Impl::check_usable(const char* call) const {
  require<InvalidArgument>(rank >= 0, [&] {
    return str(what(call), "rank ", world->place.rank,
               " is not a member of this group of ", size(),
               " ranks; ask is_member() first.");
  });
  require<InvalidState>(
      !destroyed, [&] { return str(what(call), "this group was destroyed."); });
}

void ProcessGroup::Impl::check_rank(const char* call, const char* role,
                                    int group_rank) const {
  require<InvalidArgument>(group_rank >= 0 && group_rank < size(), [&] {
    return str(what(call), "the ", role, " is ", group_rank,
               "; expected a rank of this group, 0..", size() - 1, ".");
  });
}

void ProcessGroup::Impl::check_dense(const char* call,
                                     const at::Tensor& tensor) const {
  require<InvalidArgument>(tensor.defined() && tensor.is_contiguous(), [&] {
    return str(what(call), "got a tensor that is ",
               tensor.defined() ? "not contiguous; give tensor.contiguous()."
                                : "undefined.");
  });
  static_cast<void>(entry_of(tensor));
}

void ProcessGroup::Impl::check_tensor(const char* call,
                                      const at::Tensor& tensor) const {
  check_dense(call, tensor);
  const Entry& entry = entry_of(tensor);
  const bool computes =
      entry.name != "gloo" ||
      std::count(kGlooTypes.begin(), kGlooTypes.end(),
                 c10::toRealValueType(tensor.scalar_type())) > 0;
  require<InvalidArgument>(computes, [&] {
    return tessera::str(what(call), "Gloo has no dtype ", tensor.scalar_type(),
                        "; expected a float type, bool, or a whole number of ",
                        "8, 32 or 64 bits.");
  });
}

void ProcessGroup::Impl::check_list(const char* call, const char* role,
                                    const std::vector<at::Tensor>& tensors,
                                    size_t count,
                                    const at::Tensor& like) const {
  require<InvalidArgument>(tensors.size() == count, [&] {
    return str(what(call), "got ", tensors.size(), " ", role, "; expected ",
               count, count == 0 ? ": they belong to the root." : ".");
  });
  for (const at::Tensor& tensor : tensors) {
    check_tensor(call, tensor);
    require<InvalidArgument>(
        tensor.scalar_type() == like.scalar_type() &&
            tensor.device() == like.device(),
        [&] {
          return tessera::str(
              what(call), "got ", role, " of ", tensor.scalar_type(), " on ",
              tensor.device(), " with others of ", like.scalar_type(), " on ",
              like.device(), "; expected one dtype and one device.");
        });
  }
}

const ProcessGroup::Impl::Entry& ProcessGroup::Impl::entry_of(
    const at::Tensor& tensor) const {
  const auto found = backends.find(tensor.device().type());
  const bool right_card = !tensor.is_cuda() || !world->place.device.is_cuda() ||
                          tensor.device() == world->place.device;
  require<InvalidArgument>(found != backends.end() && right_card, [&] {
    std::string names;
    for (const auto& [type, entry] : backends) {
      names +=
          tessera::str(names.empty() ? "" : ", ", type, " (", entry.name, ")");
    }
    return tessera::str("group '", name, "': got a tensor on ", tensor.device(),
                        "; this group takes tensors on ", names,
                        ", this rank computes on ", world->place.device, ".");
  });
  return found->second;
}

c10::Device ProcessGroup::Impl::own_device() const {
  return backends.contains(c10::kCPU) ? c10::Device(c10::kCPU)
                                      : world->place.device;
}

void ProcessGroup::Impl::raise(const char* kind, uint64_t sequence,
                               const std::exception& error) {
  const std::string reason = reason_of(error);
  const bool of_peers = dynamic_cast<const c10::DistError*>(&error) != nullptr;
  if (dynamic_cast<const c10::Error*>(&error) == nullptr || of_peers) {
    world->raise(sequence, reason);
  }
  world->log.finish(sequence);
  if (says(reason, "does not support") || says(reason, "not implement") ||
      says(reason, "Cannot use ReduceOp")) {
    throw Unsupported(what(kind) + reason);
  }
  throw InvalidArgument(what(kind) + reason);
}

}  // namespace tessera::distributed
