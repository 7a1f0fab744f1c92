#include "tessera/comm/object_collectives.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>

#include "tessera/comm/distributed.h"
#include "tessera/comm/process_group_impl.h"

namespace tessera::distributed {
namespace {

using at::Tensor;
using Group = ProcessGroup::Impl;

Tensor blank(const Group& group, int64_t numel, c10::ScalarType dtype) {
  return at::zeros({numel}, at::TensorOptions(group.own_device()).dtype(dtype));
}

// `size` bytes of which the first are those of `bytes`.
Tensor to_tensor(const Group& group, const std::string& bytes, int64_t size) {
  Tensor tensor = at::zeros({size}, at::kByte);
  if (!bytes.empty()) {
    std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  }
  return tensor.to(group.own_device());
}

std::string to_bytes(const Tensor& tensor, int64_t size) {
  const Tensor here = tensor.cpu();
  if (size == 0) return {};
  return {static_cast<const char*>(here.const_data_ptr()),
          static_cast<size_t>(size)};
}

Tensor to_tensor(const Group& group, const std::vector<int64_t>& numbers) {
  Tensor tensor = at::zeros({static_cast<int64_t>(numbers.size())}, at::kLong);
  std::copy(numbers.begin(), numbers.end(), tensor.mutable_data_ptr<int64_t>());
  return tensor.to(group.own_device());
}

std::vector<int64_t> to_numbers(const Tensor& tensor) {
  const Tensor here = tensor.cpu();
  const auto* first = here.const_data_ptr<int64_t>();
  return {first, first + here.numel()};
}

std::vector<int64_t> all_sizes(const std::string& object,
                               const ProcessGroup& group) {
  const Tensor sizes = blank(group.impl(), group.size(), at::kLong);
  const Tensor own =
      to_tensor(group.impl(), {static_cast<int64_t>(object.size())});
  all_gather_into_tensor(sizes, own, group).wait();
  return to_numbers(sizes);
}

std::vector<std::string> cut(const std::vector<Tensor>& tensors,
                             const std::vector<int64_t>& sizes) {
  std::vector<std::string> objects;
  for (size_t i = 0; i < tensors.size(); ++i) {
    objects.push_back(to_bytes(tensors[i], sizes[i]));
  }
  return objects;
}

std::vector<int64_t> sizes_of(const std::vector<std::string>& objects) {
  std::vector<int64_t> sizes;
  for (const std::string& object : objects) {
    sizes.push_back(static_cast<int64_t>(object.size()));
  }
  return sizes;
}

std::string join(const std::vector<std::string>& objects) {
  std::string all;
  for (const std::string& object : objects) all += object;
  return all;
}

std::vector<std::string> split(const std::string& all,
                               const std::vector<int64_t>& sizes) {
  std::vector<std::string> objects;
  size_t begin = 0;
  for (const int64_t size : sizes) {
    objects.push_back(all.substr(begin, static_cast<size_t>(size)));
    begin += static_cast<size_t>(size);
  }
  return objects;
}

int64_t sum(const std::vector<int64_t>& numbers) {
  int64_t total = 0;
  for (const int64_t number : numbers) total += number;
  return total;
}

// A list travels as its length, the sizes, and all bytes; `move` carries one
// tensor, and returns when it is there.
template <class Move>
void put_list(const Group& group, const std::vector<std::string>& objects,
              Move&& move) {
  const std::vector<int64_t> sizes = sizes_of(objects);
  move(to_tensor(group, {static_cast<int64_t>(sizes.size())}));
  move(to_tensor(group, sizes));
  move(to_tensor(group, join(objects), sum(sizes)));
}

template <class Move>
std::vector<std::string> take_list(const Group& group, Move&& move) {
  const Tensor length = blank(group, 1, at::kLong);
  move(length);
  const Tensor sizes = blank(group, to_numbers(length)[0], at::kLong);
  move(sizes);
  const std::vector<int64_t> numbers = to_numbers(sizes);
  const Tensor bytes = blank(group, sum(numbers), at::kByte);
  move(bytes);
  return split(to_bytes(bytes, bytes.numel()), numbers);
}

}  // namespace

std::vector<std::string> all_gather_object(const std::string& object,
                                           const ProcessGroup& group) {
  const Group& impl = group.impl();
  impl.check_usable("all_gather_object");
  const std::vector<int64_t> sizes = all_sizes(object, group);
  const int64_t longest = *std::max_element(sizes.begin(), sizes.end());
  std::vector<Tensor> outputs;
  for (int rank = 0; rank < group.size(); ++rank) {
    outputs.push_back(blank(impl, longest, at::kByte));
  }
  all_gather(outputs, to_tensor(impl, object, longest), group).wait();
  return cut(outputs, sizes);
}

std::vector<std::string> gather_object(const std::string& object, int root,
                                       const ProcessGroup& group) {
  const Group& impl = group.impl();
  impl.check_usable("gather_object");
  impl.check_rank("gather_object", "root", root);
  const std::vector<int64_t> sizes = all_sizes(object, group);
  const int64_t longest = *std::max_element(sizes.begin(), sizes.end());
  std::vector<Tensor> outputs;
  for (int rank = 0; group.rank() == root && rank < group.size(); ++rank) {
    outputs.push_back(blank(impl, longest, at::kByte));
  }
  gather(to_tensor(impl, object, longest), outputs, root, group).wait();
  return cut(outputs, sizes);
}

void broadcast_object_list(std::vector<std::string>& objects, int root,
                           const ProcessGroup& group) {
  const Group& impl = group.impl();
  impl.check_usable("broadcast_object_list");
  impl.check_rank("broadcast_object_list", "root", root);
  const auto move = [&](const Tensor& tensor) {
    broadcast(tensor, root, group).wait();
  };
  if (impl.rank == root) {
    put_list(impl, objects, move);
  } else {
    objects = take_list(impl, move);
  }
}

std::string scatter_object_list(const std::vector<std::string>& objects,
                                int root, const ProcessGroup& group) {
  const Group& impl = group.impl();
  impl.check_usable("scatter_object_list");
  impl.check_rank("scatter_object_list", "root", root);
  const size_t expected = impl.rank == root ? impl.ranks.size() : 0;
  require<InvalidArgument>(objects.size() == expected, [&] {
    return str(impl.what("scatter_object_list"), "got ", objects.size(),
               " objects; expected ", expected,
               expected == 0 ? ": they belong to the root." : ".");
  });
  std::vector<int64_t> sizes = sizes_of(objects);
  sizes.resize(impl.ranks.size());
  const Tensor shared = to_tensor(impl, sizes);
  broadcast(shared, root, group).wait();
  sizes = to_numbers(shared);
  const int64_t longest = *std::max_element(sizes.begin(), sizes.end());
  std::vector<Tensor> inputs;
  for (const std::string& object : objects) {
    inputs.push_back(to_tensor(impl, object, longest));
  }
  const Tensor output = blank(impl, longest, at::kByte);
  scatter(output, inputs, root, group).wait();
  return to_bytes(output, sizes[impl.rank]);
}

void send_object_list(const std::vector<std::string>& objects, int destination,
                      const ProcessGroup& group) {
  put_list(group.impl(), objects,
           [&](const Tensor& tensor) { send(tensor, destination, group); });
}

std::vector<std::string> recv_object_list(int source,
                                          const ProcessGroup& group) {
  const Group& impl = group.impl();
  impl.check_usable("recv_object_list");
  require<InvalidArgument>(source != kAnySource, [&] {
    return str(impl.what("recv_object_list"), "needs to know its source: a ",
               "list is more than one message.");
  });
  return take_list(impl,
                   [&](const Tensor& tensor) { recv(tensor, source, group); });
}

}  // namespace tessera::distributed
