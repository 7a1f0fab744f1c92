// One rank of a job of real processes: distributed_worker URL RANK WORLD_SIZE
// [die]. Prints what each collective gives it, as test_processes.py does in
// Python.
#include <torch/torch.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <numeric>
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

struct NamedOp {
  const char* name;
  ReduceOp op;
};

constexpr NamedOp kOps[] = {
    {"sum", ReduceOp::sum},         {"avg", ReduceOp::avg},
    {"product", ReduceOp::product}, {"min", ReduceOp::min},
    {"max", ReduceOp::max},         {"band", ReduceOp::band},
    {"bor", ReduceOp::bor},         {"bxor", ReduceOp::bxor}};

struct NamedType {
  const char* name;
  torch::Dtype dtype;
};

constexpr NamedType kTypes[] = {{"float32", torch::kFloat32},
                                {"float64", torch::kFloat64},
                                {"bfloat16", torch::kBFloat16},
                                {"int64", torch::kInt64}};

class Table {
 public:
  explicit Table(const ProcessGroup& group)
      : group_(group), rank_(group.rank()), size_(group.size()) {}

  void print_all() {
    for (const NamedType& type : kTypes) {
      type_ = type;
      for (const NamedOp& op : kOps) print_reductions(op);
      print_moves();
    }
  }

 private:
  [[nodiscard]] Tensor values(int rank, int64_t numel) const {
    const auto i = torch::arange(numel, torch::kFloat64);
    return type_.dtype == torch::kInt64
               ? (torch::arange(numel) * 3 + rank * 7).remainder(11) + 1
               : (i * 0.37 + rank * 1.13 + 0.5).to(type_.dtype);
  }

  [[nodiscard]] Tensor zeros(int64_t numel) const {
    return torch::zeros({numel}, type_.dtype);
  }

  void print(const std::string& call, const Tensor& tensor) const {
    const Tensor flat = tensor.to(torch::kFloat64).view({-1}).contiguous();
    std::printf("%d %s %s:", size_, type_.name, call.c_str());
    for (int64_t i = 0; i < flat.numel(); ++i) {
      std::printf(" %.17g", flat.const_data_ptr<double>()[i]);
    }
    std::printf("\n");
  }

  void print_reductions(const NamedOp& op) {
    const bool floats = type_.dtype != torch::kInt64;
    const bool bitwise = op.op == ReduceOp::band || op.op == ReduceOp::bor ||
                         op.op == ReduceOp::bxor;
    if (floats ? bitwise : op.op == ReduceOp::avg) return;
    const std::string name = op.name;
    Tensor tensor = values(rank_, 7);
    all_reduce(tensor, group_, op.op).wait();
    print("all_reduce " + name, tensor);
    tensor = values(rank_, 7);
    reduce(tensor, size_ - 1, group_, op.op).wait();
    if (rank_ == size_ - 1) print("reduce " + name, tensor);
    const Tensor input = values(rank_, 4 * size_);
    Tensor output = zeros(4);
    reduce_scatter_tensor(output, input, group_, op.op).wait();
    print("reduce_scatter_tensor " + name, output);
    reduce_scatter(output, input.chunk(size_), group_, op.op).wait();
    print("reduce_scatter " + name, output);
  }

  void print_moves() {
    const Tensor own = values(rank_, 5);
    Tensor tensor = own.clone();
    broadcast(tensor, 1, group_).wait();
    print("broadcast", tensor);
    Tensors list;
    for (int r = 0; r < size_; ++r) list.push_back(zeros(5));
    all_gather(list, own, group_).wait();
    print("all_gather", torch::cat(list));
    Tensor whole = zeros(5 * size_);
    all_gather_into_tensor(whole, own, group_).wait();
    print("all_gather_into_tensor", whole);
    gather(own, rank_ == 1 ? list : Tensors{}, 1, group_).wait();
    if (rank_ == 1) print("gather", torch::cat(list));
    scatter(tensor, rank_ == 1 ? list : Tensors{}, 1, group_).wait();
    print("scatter", tensor);
    print_all_to_all();
    const int next = (rank_ + 1) % size_;
    Work sent = isend(own, next, group_, 3);
    recv(tensor, (rank_ + size_ - 1) % size_, group_, 3);
    sent.wait();
    print("recv", tensor);
  }

  void print_all_to_all() {
    Tensor output = zeros(2 * size_);
    all_to_all_single(output, values(rank_, 2 * size_), group_).wait();
    print("all_to_all_single", output);
    // Rank r sends 1, 2, ... rows to ranks 0, 1, ...
    Splits splits;
    splits.input.resize(size_);
    std::iota(splits.input.begin(), splits.input.end(), 1);
    splits.output.assign(size_, rank_ + 1);
    const int64_t rows = size_ * (size_ + 1) / 2;
    output = zeros(2 * size_ * (rank_ + 1)).view({-1, 2});
    all_to_all_single(output, values(rank_, 2 * rows).view({-1, 2}), group_,
                      splits)
        .wait();
    print("all_to_all_single rows", output);
  }

  ProcessGroup group_;
  int rank_;
  int size_;
  NamedType type_ = kTypes[0];
};

// Rank 1 ends before a call that the others make.
void lose_a_rank(const ProcessGroup& group) {
  if (group.rank() == 1) _exit(3);
  all_reduce(torch::ones({10}), group).wait();
}

void run(const std::string& url, int rank, int world_size,
         const std::string& what) {
  tessera::InitOptions options;
  options.init_method = url;
  if (rank >= 0) options.rank = rank;
  if (world_size >= 0) options.world_size = world_size;
  options.backend = tessera::CommBackend::gloo;
  options.timeout = std::chrono::seconds(60);
  const World world = tessera::init_distributed(options);
  const ProcessGroup all = new_group(world);
  const ProcessGroup pair = new_group(world, {0, 1});
  std::printf("backend %s, time-out %ld ms\n", all.backend().c_str(),
              static_cast<long>(all.timeout().count()));
  Table(all).print_all();
  if (pair.is_member() && world.size() > 2) Table(pair).print_all();
  if (what == "die") lose_a_rank(all);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  try {
    run(argv[1], std::stoi(argv[2]), std::stoi(argv[3]),
        argc > 4 ? argv[4] : "");
    return 0;
  } catch (const tessera::Error& error) {
    std::cout << error.what() << std::endl;
    return 9;
  }
}
