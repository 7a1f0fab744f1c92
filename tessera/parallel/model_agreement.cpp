#include "tessera/parallel/model_agreement.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string>

#include "tessera/base/error.h"
#include "tessera/comm/distributed.h"
#include "tessera/comm/text_agreement.h"

namespace tessera {

namespace {

using at::Tensor;

constexpr int64_t kMostBytes = int64_t{250} << 20;
/// Where a tensor may begin among the bytes, of any dtype.
constexpr int64_t kAlignment = 16;

std::string line_of(const NamedTensor& named) {
  const Tensor& tensor = named.tensor;
  return str("'", named.name, "' ", tensor.sizes(), " ",
             c10::toString(tensor.scalar_type()), ", strides ",
             tensor.strides(), tensor.requires_grad() ? ", trained" : "");
}

int64_t room_of(const Tensor& tensor) {
  return (static_cast<int64_t>(tensor.nbytes()) + kAlignment - 1) / kAlignment *
         kAlignment;
}

Tensor as_bytes(const Tensor& tensor) {
  return tensor.contiguous().view({-1}).view(at::kByte);
}

void broadcast_together(const std::vector<Tensor>& tensors, int root,
                        const distributed::ProcessGroup& group) {
  int64_t room = 0;
  for (const Tensor& tensor : tensors) room += room_of(tensor);
  if (room == 0) return;
  const Tensor all = at::zeros(
      {room}, at::TensorOptions(tensors[0].device()).dtype(at::kByte));
  const auto each_place = [&](const auto& act) {
    int64_t offset = 0;
    for (const Tensor& tensor : tensors) {
      if (tensor.numel() == 0) continue;
      act(tensor, all.narrow(0, offset, static_cast<int64_t>(tensor.nbytes())));
      offset += room_of(tensor);
    }
  };
  const bool is_root = group.rank() == root;
  if (is_root) {
    each_place([](const Tensor& tensor, const Tensor& place) {
      place.copy_(as_bytes(tensor));
    });
  }
  distributed::broadcast(all, root, group).wait();
  if (is_root) return;
  each_place([](const Tensor& tensor, const Tensor& place) {
    tensor.copy_(place.view(tensor.scalar_type()).view(tensor.sizes()));
  });
}

}  // namespace

void check_same_models(const std::string& options,
                       const std::vector<NamedTensor>& tensors,
                       const distributed::ProcessGroup& group) {
  std::string mine = str("the options: ", options, "\n");
  for (const NamedTensor& named : tensors) mine += line_of(named) + "\n";
  const auto all = distributed::all_gather_object(mine, group);
  const auto difference = first_difference(all, "nothing");
  require<InvalidArgument>(!difference, [&] {
    return str("DistributedDataParallel: the ranks have unlike models: ",
               difference->first, " on rank ", group.world_rank(0), " and ",
               difference->other, " on rank ",
               group.world_rank(difference->other_rank),
               "; build and wrap the same model on all ranks.");
  });
}

void broadcast_tensors(const std::vector<Tensor>& tensors, int root,
                       const distributed::ProcessGroup& group) {
  const at::NoGradGuard no_grad;
  std::vector<Tensor> together;
  int64_t bytes = 0;
  for (const Tensor& tensor : tensors) {
    together.push_back(tensor);
    bytes += room_of(tensor);
    if (bytes < kMostBytes) continue;
    broadcast_together(together, root, group);
    together.clear();
    bytes = 0;
  }
  if (!together.empty()) broadcast_together(together, root, group);
}

std::vector<size_t> numbers_of_root(const std::vector<size_t>& mine, int root,
                                    const distributed::ProcessGroup& group) {
  std::string text;
  for (const size_t number : mine) text += str(number, " ");
  std::vector<std::string> texts = {text};
  distributed::broadcast_object_list(texts, root, group);
  std::istringstream in(texts.at(0));
  std::vector<size_t> numbers;
  for (size_t number = 0; in >> number;) numbers.push_back(number);
  return numbers;
}

std::vector<int32_t> most_of(const std::vector<int32_t>& mine,
                             c10::Device device,
                             const distributed::ProcessGroup& group) {
  const Tensor most = at::tensor(mine, at::kInt).to(device);
  distributed::all_reduce(most, group, ReduceOp::max).wait();
  const Tensor all = most.cpu();
  const auto* values = all.const_data_ptr<int32_t>();
  return {values, values + all.numel()};
}

std::vector<bool> true_anywhere(const std::vector<bool>& mine,
                                c10::Device device,
                                const distributed::ProcessGroup& group) {
  const auto most = most_of({mine.begin(), mine.end()}, device, group);
  return {most.begin(), most.end()};
}

}  // namespace tessera
