#include "tessera/comm/distributed.h"

#include <ATen/ops/mul.h>

#include <numeric>
#include <utility>

#include "tessera/comm/below_autograd.h"
#include "tessera/comm/process_group_impl.h"
#include "tessera/comm/reduction.h"

namespace tessera::distributed {
namespace {

using at::Tensor;
using Group = ProcessGroup::Impl;
using Tensors = std::vector<Tensor>;

c10d::Backend& backend_of(const Group& group, const Tensor& tensor) {
  return *group.entry_of(tensor).backend;
}

bool is_gloo(const Group& group, const Tensor& tensor) {
  return group.entry_of(tensor).name == "gloo";
}

void add(Work::Impl& work, const Group::Entry& entry,
         c10::intrusive_ptr<c10d::Work> started) {
  const bool gloo = entry.name == "gloo";
  work.add(std::move(started),
           gloo ? entry.backend : c10::intrusive_ptr<c10d::Backend>());
}

Group& usable(const ProcessGroup& group, const char* call) {
  group.impl().check_usable(call);
  return group.impl();
}

int64_t numel_of(const Tensors& tensors) {
  int64_t numel = 0;
  for (const Tensor& tensor : tensors) numel += tensor.numel();
  return numel;
}

void check_numel(const Group& group, const char* call, const char* what,
                 int64_t got, int64_t expected) {
  require<InvalidArgument>(got == expected, [&] {
    return str(group.what(call), "got ", what, " of ", got,
               " elements; expected ", expected, ".");
  });
}

void check_equal_sizes(const Group& group, const char* call, const char* what,
                       const Tensors& tensors, const Tensor& like) {
  for (const Tensor& tensor : tensors) {
    check_numel(group, call, what, tensor.numel(), like.numel());
  }
}

void check_pair(const Group& group, const char* call, const Tensor& whole,
                const Tensor& part) {
  group.check_tensor(call, part);
  group.check_list(call, "whole tensors", {whole}, 1, part);
  check_numel(group, call, "a whole", whole.numel(),
              part.numel() * group.size());
}

void scale_in_place(const Group& group, Tensor tensor,
                    const Reduction& reduction) {
  if (!must_scale(group, tensor, reduction)) return;
  const BelowAutograd below_autograd;
  tensor.mul_(reduction.factor);
}

Tensor scaled(const Group& group, const Tensor& tensor,
              const Reduction& reduction) {
  if (!must_scale(group, tensor, reduction)) return tensor;
  const BelowAutograd below_autograd;
  return at::mul(tensor, reduction.factor);
}

}  // namespace

Work broadcast(const Tensor& tensor, int root, const ProcessGroup& handle) {
  Group& group = usable(handle, "broadcast");
  group.check_tensor("broadcast", tensor);
  group.check_rank("broadcast", "root", root);
  return group.start(
      Group::call_of("broadcast", tensor, {.root = root}),
      [&](Work::Impl& work) {
        Tensors tensors = {flat_output(work, tensor)};
        c10d::BroadcastOptions options;
        options.rootRank = root;
        add(work, group.entry_of(tensor),
            backend_of(group, tensor).broadcast(tensors, options));
      });
}

Work all_reduce(const Tensor& tensor, const ProcessGroup& handle,
                const Reduction& reduction) {
  Group& group = usable(handle, "all_reduce");
  group.check_tensor("all_reduce", tensor);
  check_reduction(group, "all_reduce", tensor, reduction);
  return group.start(
      Group::call_of("all_reduce", tensor, terms_of(reduction)),
      [&](Work::Impl& work) {
        scale_in_place(group, tensor, reduction);
        Tensors tensors = {flat_output(work, tensor)};
        c10d::AllreduceOptions options;
        options.reduceOp = to_c10d(group, tensor, reduction);
        add(work, group.entry_of(tensor),
            backend_of(group, tensor).allreduce(tensors, options));
      });
}

Work reduce(const Tensor& tensor, int root, const ProcessGroup& handle,
            const Reduction& reduction) {
  Group& group = usable(handle, "reduce");
  group.check_tensor("reduce", tensor);
  group.check_rank("reduce", "root", root);
  check_reduction(group, "reduce", tensor, reduction);
  return group.start(
      Group::call_of("reduce", tensor, terms_of(reduction, root)),
      [&](Work::Impl& work) {
        scale_in_place(group, tensor, reduction);
        Tensors tensors = {flat_output(work, tensor)};
        c10d::ReduceOptions options;
        options.reduceOp = to_c10d(group, tensor, reduction);
        options.rootRank = root;
        add(work, group.entry_of(tensor),
            backend_of(group, tensor).reduce(tensors, options));
      });
}

Work all_gather(const Tensors& outputs, const Tensor& input,
                const ProcessGroup& handle) {
  Group& group = usable(handle, "all_gather");
  group.check_tensor("all_gather", input);
  group.check_list("all_gather", "outputs", outputs, group.size(), input);
  if (is_gloo(group, input)) {
    check_equal_sizes(group, "all_gather", "an output", outputs, input);
  }
  check_numel(group, "all_gather", "the output of this rank",
              outputs[group.rank].numel(), input.numel());
  return group.start({"all_gather", numel_of(outputs), input.scalar_type()},
                     [&](Work::Impl& work) {
                       std::vector<Tensors> lists = {
                           flat_outputs(work, outputs)};
                       Tensors inputs = {flat(input)};
                       add(work, group.entry_of(input),
                           backend_of(group, input).allgather(lists, inputs));
                     });
}

Work all_gather_into_tensor(const Tensor& output, const Tensor& input,
                            const ProcessGroup& handle) {
  Group& group = usable(handle, "all_gather_into_tensor");
  check_pair(group, "all_gather_into_tensor", output, input);
  return group.start(
      Group::call_of("all_gather_into_tensor", output), [&](Work::Impl& work) {
        Tensor whole = flat_output(work, output);
        Tensor part = flat(input);
        add(work, group.entry_of(input),
            backend_of(group, input)._allgather_base(whole, part));
      });
}

Work reduce_scatter(const Tensor& output, const Tensors& inputs,
                    const ProcessGroup& handle, const Reduction& reduction) {
  Group& group = usable(handle, "reduce_scatter");
  group.check_tensor("reduce_scatter", output);
  group.check_list("reduce_scatter", "inputs", inputs, group.size(), output);
  check_numel(group, "reduce_scatter", "the input for this rank",
              inputs[group.rank].numel(), output.numel());
  check_reduction(group, "reduce_scatter", output, reduction);
  return group.start(
      {"reduce_scatter", numel_of(inputs), output.scalar_type(),
       terms_of(reduction)},
      [&](Work::Impl& work) {
        Tensors outputs = {flat_output(work, output)};
        std::vector<Tensors> lists(1);
        for (const Tensor& input : inputs) {
          lists[0].push_back(flat(scaled(group, input, reduction)));
        }
        c10d::ReduceScatterOptions options;
        options.reduceOp = to_c10d(group, output, reduction);
        add(work, group.entry_of(output),
            backend_of(group, output).reduce_scatter(outputs, lists, options));
      });
}

Work reduce_scatter_tensor(const Tensor& output, const Tensor& input,
                           const ProcessGroup& handle,
                           const Reduction& reduction) {
  Group& group = usable(handle, "reduce_scatter_tensor");
  check_pair(group, "reduce_scatter_tensor", input, output);
  check_reduction(group, "reduce_scatter_tensor", input, reduction);
  return group.start(
      Group::call_of("reduce_scatter_tensor", input, terms_of(reduction)),
      [&](Work::Impl& work) {
        Tensor part = flat_output(work, output);
        Tensor whole = flat(scaled(group, input, reduction));
        c10d::ReduceScatterOptions options;
        options.reduceOp = to_c10d(group, input, reduction);
        add(work, group.entry_of(input),
            backend_of(group, input)
                ._reduce_scatter_base(part, whole, options));
      });
}

Work gather(const Tensor& input, const Tensors& outputs, int root,
            const ProcessGroup& handle) {
  Group& group = usable(handle, "gather");
  const size_t count = group.rank == root ? group.ranks.size() : 0;
  group.check_tensor("gather", input);
  group.check_rank("gather", "root", root);
  group.check_list("gather", "outputs", outputs, count, input);
  check_equal_sizes(group, "gather", "an output", outputs, input);
  return group.start(
      Group::call_of("gather", input, {.root = root}), [&](Work::Impl& work) {
        std::vector<Tensors> lists;
        if (count > 0) lists.push_back(flat_outputs(work, outputs));
        Tensors inputs = {flat(input)};
        c10d::GatherOptions options;
        options.rootRank = root;
        add(work, group.entry_of(input),
            backend_of(group, input).gather(lists, inputs, options));
      });
}

Work scatter(const Tensor& output, const Tensors& inputs, int root,
             const ProcessGroup& handle) {
  Group& group = usable(handle, "scatter");
  const size_t count = group.rank == root ? group.ranks.size() : 0;
  group.check_tensor("scatter", output);
  group.check_rank("scatter", "root", root);
  group.check_list("scatter", "inputs", inputs, count, output);
  check_equal_sizes(group, "scatter", "an input", inputs, output);
  return group.start(
      Group::call_of("scatter", output, {.root = root}), [&](Work::Impl& work) {
        std::vector<Tensors> lists;
        if (count > 0) lists.push_back(flat(inputs));
        Tensors outputs = {flat_output(work, output)};
        c10d::ScatterOptions options;
        options.rootRank = root;
        add(work, group.entry_of(output),
            backend_of(group, output).scatter(outputs, lists, options));
      });
}

Work barrier(const ProcessGroup& handle) {
  Group& group = usable(handle, "barrier");
  return group.start({"barrier"}, [&](Work::Impl& work) {
    c10d::BarrierOptions options;
    options.device = group.own_device();
    if (options.device->is_cuda()) {
      options.device_ids = {options.device->index()};
    }
    const Group::Entry& entry = group.backends.at(options.device->type());
    add(work, entry, entry.backend->barrier(options));
  });
}

// Through the store, which knows who is missing; Gloo's own, which tries every
// connection, names them on one rank alone.
void monitored_barrier(const ProcessGroup& handle,
                       std::optional<std::chrono::milliseconds> timeout) {
  Group& group = usable(handle, "monitored_barrier");
  const auto longest = timeout.value_or(group.timeout);
  require<InvalidArgument>(longest > std::chrono::milliseconds(0), [&] {
    return str(group.what("monitored_barrier"), "the time-out is ",
               longest.count(), " ms; give more than 0.");
  });
  const auto& entry = group.backends.at(group.own_device().type());
  group.world->meet(group.name, "monitored_barrier",
                    {.unit = group.description}, [&] {
                      group.rendezvous->barrier("monitored", longest);
                      if (entry.name != "gloo") return;
                      c10d::BarrierOptions options;
                      options.timeout = longest;
                      entry.backend->monitoredBarrier(options,
                                                      /*waitAllRanks=*/true);
                    });
}

}  // namespace tessera::distributed
