// Every call of distributed.h on the devices of this job's ranks, against its
// definition; also on a group of NCCL and Gloo. Prints a line for each call;
// exits with 1 when any differs. Needs two ranks or more.
#include <torch/torch.h>

#include <cstdio>
#include <functional>
#include <string>

#include "tessera/base/error.h"
#include "tessera/comm/distributed.h"
#include "tessera/comm/world.h"

namespace {

using namespace tessera::distributed;
using tessera::ReduceOp;
using tessera::World;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

class Checks {
 public:
  Checks(const ProcessGroup& group, c10::Device device)
      : group_(group),
        device_(device),
        rank_(group.rank()),
        size_(group.size()) {}

  int run() {
    for (const auto dtype :
         {torch::kFloat32, torch::kBFloat16, torch::kInt64}) {
      dtype_ = dtype;
      check_reductions();
      check_moves();
      check_all_to_all();
      check_messages();
    }
    check_objects();
    check_barriers();
    check_errors();
    return failures_;
  }

 private:
  [[nodiscard]] Tensor values(int rank, int64_t numel) const {
    const auto numbers = (torch::arange(numel) * 5 + rank * 7).remainder(3) + 1;
    return numbers.to(dtype_).to(device_);
  }

  [[nodiscard]] Tensor zeros(int64_t numel) const {
    return torch::zeros({numel}, torch::dtype(dtype_).device(device_));
  }

  [[nodiscard]] Tensor of_all(
      int64_t numel, const std::function<Tensor(Tensor, Tensor)>& op) const {
    Tensor result = values(0, numel);
    for (int r = 1; r < size_; ++r) result = op(result, values(r, numel));
    return result;
  }

  void expect(const std::string& call, bool ok) {
    if (!ok) ++failures_;
    if (rank_ == 0 || !ok) {
      std::printf("rank %d, %s, %s: %s\n", rank_, group_.backend().c_str(),
                  call.c_str(), ok ? "ok" : "DIFFERS");
    }
  }
  void expect(const std::string& call, const Tensor& got,
              const Tensor& expected) {
    expect(std::string(c10::toString(dtype_)) + " " + call,
           torch::equal(got, expected));
  }

  void check_reduction(const std::string& name, const Reduction& reduction,
                       const std::function<Tensor(int64_t)>& expected) {
    Tensor tensor = values(rank_, 1001);
    all_reduce(tensor, group_, reduction).wait();
    expect("all_reduce " + name, tensor, expected(1001));
    tensor = values(rank_, 9);
    reduce(tensor, 1, group_, reduction).wait();
    if (rank_ == 1) expect("reduce " + name, tensor, expected(9));
    const Tensor input = values(rank_, 4 * size_);
    Tensor output = zeros(4);
    const Tensor part = expected(4 * size_).narrow(0, 4 * rank_, 4);
    reduce_scatter_tensor(output, input, group_, reduction).wait();
    expect("reduce_scatter_tensor " + name, output, part);
    output.zero_();
    reduce_scatter(output, input.chunk(size_), group_, reduction).wait();
    expect("reduce_scatter " + name, output, part);
  }

  void check_reductions() {
    const auto sum = [this](int64_t numel) {
      return of_all(numel, [](Tensor a, Tensor b) { return a + b; });
    };
    check_reduction("sum", ReduceOp::sum, sum);
    check_reduction("product", ReduceOp::product, [this](int64_t numel) {
      return of_all(numel, [](Tensor a, Tensor b) { return a * b; });
    });
    check_reduction("min", ReduceOp::min, [this](int64_t numel) {
      return of_all(numel,
                    [](Tensor a, Tensor b) { return torch::minimum(a, b); });
    });
    check_reduction("max", ReduceOp::max, [this](int64_t numel) {
      return of_all(numel,
                    [](Tensor a, Tensor b) { return torch::maximum(a, b); });
    });
    if (dtype_ != torch::kFloat32) return;
    check_reduction("avg", ReduceOp::avg,
                    [&](int64_t numel) { return sum(numel) / size_; });
    check_reduction("premul_sum", premul_sum(0.5),
                    [&](int64_t numel) { return sum(numel) * 0.5; });
  }

  void check_moves() {
    Tensor tensor = values(rank_, 5);
    broadcast(tensor, 1, group_).wait();
    expect("broadcast", tensor, values(1, 5));
    Tensors own;
    Tensors list;
    for (int r = 0; r < size_; ++r) {
      own.push_back(values(r, 5));
      list.push_back(zeros(5));
    }
    all_gather(list, own[rank_], group_).wait();
    expect("all_gather", torch::cat(list), torch::cat(own));
    Tensor whole = zeros(5 * size_);
    all_gather_into_tensor(whole, own[rank_], group_).wait();
    expect("all_gather_into_tensor", whole, torch::cat(own));
    for (Tensor& part : list) part.zero_();
    gather(own[rank_], rank_ == 1 ? list : Tensors{}, 1, group_).wait();
    if (rank_ == 1) expect("gather", torch::cat(list), torch::cat(own));
    tensor.zero_();
    scatter(tensor, rank_ == 1 ? own : Tensors{}, 1, group_).wait();
    expect("scatter", tensor, own[rank_]);
    if (group_.backend() == "nccl") check_unlike_sizes();
  }

  void check_unlike_sizes() {
    Tensors list;
    Tensors expected;
    for (int r = 0; r < size_; ++r) {
      list.push_back(zeros(r + 1));
      expected.push_back(values(r, r + 1));
    }
    all_gather(list, expected[rank_], group_).wait();
    expect("all_gather, unlike sizes", torch::cat(list), torch::cat(expected));
  }

  void check_all_to_all() {
    Tensors inputs;
    Tensors outputs;
    Tensors expected;
    Splits splits;
    for (int r = 0; r < size_; ++r) {
      const int64_t numel = 1 + rank_ + r;
      inputs.push_back(values(10 * rank_ + r, numel));
      expected.push_back(values(10 * r + rank_, numel));
      outputs.push_back(zeros(numel));
      splits.input.push_back(numel);
      splits.output.push_back(numel);
    }
    all_to_all(outputs, inputs, group_).wait();
    expect("all_to_all", torch::cat(outputs), torch::cat(expected));
    Tensor output = torch::zeros_like(torch::cat(expected));
    all_to_all_single(output, torch::cat(inputs), group_, splits).wait();
    expect("all_to_all_single", output, torch::cat(expected));
  }

  void check_messages() {
    const int next = (rank_ + 1) % size_;
    const int last = (rank_ + size_ - 1) % size_;
    Tensor received = zeros(6);
    auto works = batch_isend_irecv({{Direction::send, values(rank_, 6), next},
                                    {Direction::receive, received, last}},
                                   group_);
    for (Work& work : works) work.wait();
    expect("batch_isend_irecv", received, values(last, 6));
    received.zero_();
    if (rank_ == 0) send(values(0, 6), 1, group_);
    if (rank_ == 1) {
      recv(received, 0, group_);
      expect("recv", received, values(0, 6));
    }
  }

  void check_objects() {
    std::vector<std::string> all;
    for (int r = 0; r < size_; ++r) all.emplace_back(r + 1, 'a');
    expect("all_gather_object", all_gather_object(all[rank_], group_) == all);
    std::vector<std::string> list;
    if (rank_ == 1) list = all;
    broadcast_object_list(list, 1, group_);
    expect("broadcast_object_list", list == all);
  }

  void check_barriers() {
    Work work = barrier(group_);
    work.wait();
    expect("barrier", work.is_completed() && work.is_success());
    monitored_barrier(group_);
    expect("monitored_barrier", true);
  }

  void check_errors() {
    bool refused = false;
    try {
      Tensor other =
          torch::ones({2}, device_.is_cuda() ? c10::kCPU : c10::kMeta);
      if (group_.backend() == "nccl" || device_.is_cpu()) {
        all_reduce(other, group_);
      } else {
        refused = true;
      }
    } catch (const tessera::InvalidArgument&) {
      refused = true;
    }
    expect("a tensor elsewhere is refused", refused);
    if (group_.backend() != "nccl") return;
    refused = false;
    try {
      all_reduce(torch::ones({2}, torch::dtype(torch::kInt64).device(device_)),
                 group_, ReduceOp::bor);
    } catch (const tessera::Unsupported&) {
      refused = true;
    }
    expect("bor on NCCL is refused", refused);
  }

  ProcessGroup group_;
  c10::Device device_;
  int rank_;
  int size_;
  torch::Dtype dtype_ = torch::kFloat32;
  int failures_ = 0;
};

}  // namespace

int main() {
  std::setvbuf(stdout, nullptr, _IOLBF,
               0);  // what was printed survives a crash
  const World world = tessera::init_distributed();
  if (world.size() < 2) {
    std::fprintf(stderr, "device_collectives: needs two ranks or more\n");
    return 2;
  }
  int failures = Checks(new_group(world), world.device()).run();
  if (world.device().is_cuda()) {
    const ProcessGroup both =
        new_group(world, {}, {.backend = "cpu:gloo,cuda:nccl"});
    failures += Checks(both, world.device()).run();
    failures += Checks(both, c10::kCPU).run();
  }
  std::printf("rank %d: %d failures\n", world.rank(), failures);
  return failures == 0 ? 0 : 1;
}
