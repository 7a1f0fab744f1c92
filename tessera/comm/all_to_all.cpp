#include <numeric>

#include "tessera/comm/below_autograd.h"
#include "tessera/comm/distributed.h"
#include "tessera/comm/process_group_impl.h"
#include "tessera/comm/reduction.h"

namespace tessera::distributed {
namespace {

using at::Tensor;
using Group = ProcessGroup::Impl;

// Above the tags of users, see point_to_point.h. Messages of one tag keep their
// order, so one is enough.
constexpr int kTag = 1 << 30;

// Gloo's backend has no call for lists.
void exchange_messages(const Group& group, Work::Impl& work,
                       const std::vector<Tensor>& outputs,
                       const std::vector<Tensor>& inputs) {
  Transfer& messages = work.messages(group.entry_of(inputs[0]).backend);
  const int size = group.size();
  for (int step = 1; step < size; ++step) {
    const int source = (group.rank + size - step) % size;
    const int target = (group.rank + step) % size;
    messages.receive(outputs[source], source, kTag);
    messages.send(inputs[target], target, kTag);
  }
  const BelowAutograd below_autograd;
  at::Tensor(outputs[group.rank]).copy_(inputs[group.rank]);
}

int64_t row_numel(const Tensor& tensor) {
  int64_t numel = 1;
  for (int64_t dim = 1; dim < tensor.dim(); ++dim) numel *= tensor.size(dim);
  return numel;
}

void check_splits(const Group& group, const char* what, const Tensor& tensor,
                  const std::vector<int64_t>& splits) {
  require<InvalidArgument>(tensor.dim() > 0, [&] {
    return str(group.what("all_to_all_single"), "the ", what,
               " is a scalar; expected rows.");
  });
  const int64_t rows = tensor.size(0);
  if (splits.empty()) {
    require<InvalidArgument>(rows % group.size() == 0, [&] {
      return str(group.what("all_to_all_single"), "the ", what, " has ", rows,
                 " rows, which ", group.size(),
                 " ranks do not share equally; give Splits.");
    });
    return;
  }
  int64_t sum = 0;
  bool positive = true;
  for (const int64_t split : splits) {
    sum += split;
    positive = positive && split >= 0;
  }
  require<InvalidArgument>(
      positive && sum == rows && splits.size() == group.ranks.size(), [&] {
        return str(group.what("all_to_all_single"), "got ", splits.size(),
                   " splits of the ", what, ", ", sum,
                   " rows in all; expected ", group.size(),
                   " splits of 0 or more, ", rows, " rows.");
      });
}

}  // namespace

Work all_to_all(const std::vector<Tensor>& outputs,
                const std::vector<Tensor>& inputs, const ProcessGroup& handle) {
  Group& group = handle.impl();
  group.check_usable("all_to_all");
  require<InvalidArgument>(!inputs.empty() && inputs[0].defined(), [&] {
    return str(group.what("all_to_all"), "got no inputs; expected ",
               group.size(), ".");
  });
  group.check_list("all_to_all", "inputs", inputs, group.size(), inputs[0]);
  group.check_list("all_to_all", "outputs", outputs, group.size(), inputs[0]);
  const int64_t kept = inputs[group.rank].numel();
  require<InvalidArgument>(outputs[group.rank].numel() == kept, [&] {
    return str(group.what("all_to_all"), "this rank keeps ", kept,
               " elements for itself, but expects ",
               outputs[group.rank].numel(), ".");
  });
  return group.start({"all_to_all"}, [&](Work::Impl& work) {
    std::vector<Tensor> to = flat_outputs(work, outputs);
    std::vector<Tensor> from = flat(inputs);
    const auto& entry = group.entry_of(inputs[0]);
    if (entry.name == "gloo") {
      exchange_messages(group, work, to, from);
    } else {
      work.add(entry.backend->alltoall(to, from));
    }
  });
}

Work all_to_all_single(const Tensor& output, const Tensor& input,
                       const ProcessGroup& handle, const Splits& splits) {
  Group& group = handle.impl();
  group.check_usable("all_to_all_single");
  group.check_tensor("all_to_all_single", input);
  group.check_list("all_to_all_single", "outputs", {output}, 1, input);
  check_splits(group, "input", input, splits.input);
  check_splits(group, "output", output, splits.output);
  require<InvalidArgument>(row_numel(input) == row_numel(output), [&] {
    return str(group.what("all_to_all_single"), "rows of the input have ",
               row_numel(input), " elements, rows of the output ",
               row_numel(output), "; expected as many.");
  });
  return group.start({"all_to_all_single"}, [&](Work::Impl& work) {
    // An empty tensor has no number of columns to be found.
    const auto rows = [](const Tensor& flat, const Tensor& tensor) {
      return tensor.numel() == 0 ? tensor : flat.view({tensor.size(0), -1});
    };
    Tensor to = rows(flat_output(work, output), output);
    Tensor from = rows(flat(input), input);
    std::vector<int64_t> output_splits = splits.output;
    std::vector<int64_t> input_splits = splits.input;
    const auto& entry = group.entry_of(input);
    work.add(
        entry.backend->alltoall_base(to, from, output_splits, input_splits),
        entry.name == "gloo" ? entry.backend
                             : c10::intrusive_ptr<c10d::Backend>());
  });
}

}  // namespace tessera::distributed
