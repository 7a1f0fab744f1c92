#include "tests/device/transport/measure.h"

#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "tessera/device/stream.h"

namespace device_transport {
namespace {

using namespace tessera;
using torch::Tensor;

/// Of both, side by side, in ms.
double time_of(c10::Device device, const std::function<void()>& products,
               const std::function<void()>& calls) {
  torch::cuda::synchronize();
  const auto begin = std::chrono::steady_clock::now();
  const auto stream = make_stream(device, StreamPriority::high);
  if (calls) {
    const StreamScope scope(stream);
    calls();
  }
  if (products) products();
  torch::cuda::synchronize();
  const std::chrono::duration<double, std::milli> took =
      std::chrono::steady_clock::now() - begin;
  return took.count();
}

}  // namespace

void measure(const World& world, Communicator& communicator,
             const std::string& transport) {
  const auto on_device = torch::dtype(torch::kBFloat16).device(world.device());
  const int64_t whole = 64 << 20;  // elements
  const Tensor full = torch::zeros({whole}, on_device);
  const Tensor part = torch::zeros({whole / world.size()}, on_device);
  const Tensor sum =
      torch::zeros({whole / world.size()}, on_device.dtype(torch::kFloat32));
  const Tensor full_float = torch::zeros({whole}, sum.options());
  const bool widens = communicator.sums_as(torch::kBFloat16, torch::kFloat32);
  constexpr int kCalls = 20;
  const auto gathers = [&] {
    for (int i = 0; i < kCalls; ++i) {
      const std::vector<GatherCall> calls = {{full, part}};
      (void)communicator.all_gather(calls, {});
    }
  };
  const auto reductions = [&] {
    for (int i = 0; i < kCalls; ++i) {
      const std::vector<ReduceCall> calls = {{sum, widens ? full : full_float}};
      (void)communicator.reduce_scatter(calls, {});
    }
  };
  const Tensor a = torch::randn({4096, 8192}, on_device);
  const Tensor b = torch::randn({8192, 8192}, on_device);
  const auto products = [&] {
    for (int i = 0; i < 40; ++i) (void)torch::mm(a, b);
  };
  for (int round = 0; round < 2; ++round) {  // the first one warms up
    const double alone = time_of(world.device(), products, {});
    const double gather = time_of(world.device(), {}, gathers);
    const double reduce = time_of(world.device(), {}, reductions);
    const double beside_gathers = time_of(world.device(), products, gathers);
    const double beside_reductions =
        time_of(world.device(), products, reductions);
    if (round == 0 || world.rank() != 0) continue;
    std::printf(
        "%s, %d ranks, ms: 40 products %.2f; %d gathers of 128 MiB %.2f, "
        "both %.2f; %d sums of gradients of 64 Mi elements %.2f, both %.2f\n",
        transport.c_str(), world.size(), alone, kCalls, gather, beside_gathers,
        kCalls, reduce, beside_reductions);
  }
}

}  // namespace device_transport
