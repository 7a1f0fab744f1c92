#include "tessera/optim/parameter_agreement.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <string>
#include <typeinfo>
#include <unordered_map>

#include "tessera/base/error.h"
#include "tessera/comm/distributed.h"
#include "tessera/comm/text_agreement.h"
#include "tessera/tensor/spread.h"

namespace tessera {
namespace {

using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamGroup;
using Groups = std::vector<OptimizerParamGroup>;

constexpr const char* kWho = "ZeroRedundancyOptimizer: ";

// --- what one rank holds -----------------------------------------------------

// One line for each parameter; equal on ranks whose parameters are alike.
class Description {
 public:
  explicit Description(BucketView view) : view_(view) {}

  std::string of(const Groups& groups, const OptimizerOptions& defaults) {
    for (size_t i = 0; i < groups.size(); ++i) {
      check_options(groups[i], defaults, i);
      for (size_t j = 0; j < groups[i].params().size(); ++j) {
        where_ = str("parameter ", j, " of group ", i);
        add(groups[i].params()[j], i);
      }
      text_ += str("end of group ", i, "\n");
    }
    require<InvalidArgument>(!groups_.empty(), [] {
      return str(
          "there is no parameter; expected one or more. Give "
          "model->parameters().");
    });
    return text_;
  }

 private:
  // Optimizers cast them without looking.
  static void check_options(const OptimizerParamGroup& group,
                            const OptimizerOptions& defaults, size_t i) {
    if (!group.has_options()) return;
    const OptimizerOptions& own = group.options();
    require<InvalidArgument>(typeid(own) == typeid(defaults), [&] {
      return str("group ", i,
                 " has options of another optimizer than the one that is "
                 "wrapped. Give options of that one.");
    });
  }

  void add(const at::Tensor& parameter, size_t group) {
    check(parameter);
    const auto [at, is_new] =
        groups_.try_emplace(parameter.unsafeGetTensorImpl(), group, where_);
    if (!is_new) {
      require<InvalidArgument>(at->second.first == group, [&] {
        return str(where_, " is also ", at->second.second,
                   ". Give it in one group.");
      });
      text_ += str(where_, " is ", at->second.second, " again\n");
      return;
    }
    const auto [device, unused] =
        devices_.try_emplace(parameter.device().str(), devices_.size());
    const char* trained = parameter.requires_grad() ? "trained" : "frozen";
    text_ += str(where_, " is ", parameter.scalar_type(), " ",
                 parameter.sizes(), " with strides ", parameter.strides(), ", ",
                 trained, ", on ", parameter.device().type(), " device no. ",
                 device->second, " of the list\n");
  }

  template <class E>
  void expect(bool ok, const char* what) const {
    require<E>(ok, [&] { return str(where_, what); });
  }

  void check(const at::Tensor& parameter) const {
    expect<InvalidArgument>(parameter.defined(),
                            " is undefined. Leave it out.");
    const Spread* spread = spread_of(parameter);
    expect<Unsupported>(
        spread == nullptr || spread->communicator == nullptr,
        " is a shard: fully_shard cuts the optimizer's state already. Use the "
        "optimizer itself.");
    expect<Unsupported>(
        spread == nullptr || view_ == BucketView::off,
        " is one of `replicate`, which keeps its parameters in a buffer of its "
        "own. Use BucketView::off.");
    expect<InvalidArgument>(
        !parameter.is_meta(),
        " is on the meta device. Give its module memory first.");
    expect<InvalidArgument>(parameter.layout() == at::kStrided,
                            " is sparse. Give dense parameters.");
    expect<InvalidArgument>(
        parameter.is_leaf(),
        " was computed by autograd (no leaf). Give the parameter itself.");
  }

  BucketView view_;
  std::string where_;
  std::string text_;
  // Of each parameter, its group and its first place.
  std::unordered_map<const c10::TensorImpl*, std::pair<size_t, std::string>>
      groups_;
  std::map<std::string, size_t> devices_;
};

// --- what all hold -----------------------------------------------------------

// The first letter says what the rest is, or the lines behind it.
constexpr char kDescription = '=';
constexpr char kInvalidArgument = 'A';
constexpr char kUnsupported = 'U';

std::string outcome_of(const Groups& groups, const OptimizerOptions& defaults,
                       BucketView view) {
  try {
    return str(kDescription, '\n', Description(view).of(groups, defaults));
  } catch (const InvalidArgument& error) {
    return str(kInvalidArgument, error.what());
  } catch (const Unsupported& error) {
    return str(kUnsupported, error.what());
  } catch (const std::exception& error) {
    return str(kInvalidArgument, error.what());
  }
}

std::string names_of(const distributed::ProcessGroup& group,
                     const std::vector<int>& ranks) {
  std::string names = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    names += str(i == 0 ? "" : ", ", group.world_rank(ranks[i]));
  }
  return names;
}

// The ranks whose text is like that of `rank`.
std::vector<int> ranks_like(const std::vector<std::string>& all, size_t rank) {
  std::vector<int> ranks;
  for (size_t other = 0; other < all.size(); ++other) {
    if (all[other] == all[rank]) ranks.push_back(static_cast<int>(other));
  }
  return ranks;
}

void raise_failure(const distributed::ProcessGroup& group,
                   const std::vector<std::string>& all) {
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const char kind = all[rank].front();
    if (kind == kDescription) continue;
    const std::string text =
        str(kWho, "on ", names_of(group, ranks_like(all, rank)), " ",
            all[rank].substr(1));
    if (kind == kUnsupported) throw Unsupported(text);
    throw InvalidArgument(text);
  }
}

void compare(const distributed::ProcessGroup& group,
             const std::vector<std::string>& all) {
  const auto difference = first_difference(all, "the list has ended");
  require<InvalidArgument>(!difference, [&] {
    const auto other = static_cast<size_t>(difference->other_rank);
    return str(kWho, "the ranks have unlike parameters: on ",
               names_of(group, ranks_like(all, 0)), " ", difference->first,
               ", but on ", names_of(group, ranks_like(all, other)), " ",
               difference->other,
               ". Give the same parameters in the same order on all ranks.");
  });
}

// A group without a backend for a device says so before anything is sent.
void try_devices(const distributed::ProcessGroup& group, const Groups& groups) {
  std::map<std::string, c10::Device> devices;
  for (const OptimizerParamGroup& one : groups) {
    for (const at::Tensor& parameter : one.params()) {
      devices.try_emplace(parameter.device().str(), parameter.device());
    }
  }
  for (const auto& [name, device] : devices) {
    const at::Tensor probe =
        at::zeros({1}, at::TensorOptions(device).dtype(at::kByte));
    distributed::broadcast(probe, 0, group).wait();
  }
}

}  // namespace

void agree_on_parameters(const distributed::ProcessGroup& group,
                         const Groups& groups, const OptimizerOptions& defaults,
                         BucketView view) {
  const std::vector<std::string> all =
      distributed::all_gather_object(outcome_of(groups, defaults, view), group);
  raise_failure(group, all);
  compare(group, all);
  try_devices(group, groups);
}

}  // namespace tessera
