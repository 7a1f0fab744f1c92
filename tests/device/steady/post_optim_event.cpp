#include "tests/device/steady/post_optim_event.h"

#include <ATen/cuda/Sleep.h>
#include <torch/torch.h>

#include <cstdio>

#include "tessera/comm/world.h"
#include "tessera/device/stream.h"
#include "tessera/shard/fully_shard.h"
#include "tessera/shard/unit_settings.h"
#include "tests/device/steady/watch.h"

namespace device_steady {
namespace {

using namespace tessera;

constexpr int64_t kSleep = 100'000'000;  // cycles: some 50 ms
constexpr int kWidth = 64;

/// What a forward gives that was issued behind a late write of ones.
torch::Tensor forward_after_late_write(torch::nn::Linear& linear,
                                       const torch::Tensor& ones) {
  const auto device = ones.device();
  const auto stream = make_stream(device, StreamPriority::normal);
  StreamEvent written;
  {
    const StreamScope scope(stream);
    torch::NoGradGuard no_grad;
    at::cuda::sleep(kSleep);
    for (auto& shard : linear->parameters()) shard.fill_(1);
    written.record(stream);
  }
  set_post_optim_event(*linear, written);
  return linear->forward(ones);
}

bool sees_new_weights(const DeviceMesh& mesh, FullyShardOptions options,
                      torch::Dtype dtype) {
  const auto device = mesh.world().device();
  torch::manual_seed(1);
  torch::nn::Linear linear(
      torch::nn::LinearOptions(kWidth, kWidth).bias(false));
  linear->to(device);
  options.mesh = mesh;
  fully_shard(*linear, options);
  const auto ones =
      torch::ones({2, kWidth}, torch::dtype(dtype).device(device));
  torch::NoGradGuard no_grad;
  (void)linear->forward(ones);
  wait_for_device();
  const auto result = forward_after_late_write(linear, ones);
  wait_for_device();
  return torch::equal(result.cpu(), torch::full({2, kWidth}, kWidth, dtype));
}

int report(const char* what, const DeviceMesh& mesh, bool good) {
  std::printf("%s rank %d: an optimizer on its own stream, %s\n",
              good ? "ok" : "FAILED", mesh.world().rank(), what);
  return good ? 0 : 1;
}

}  // namespace

int check_post_optim_event(const DeviceMesh& mesh) {
  FullyShardOptions cast;
  cast.mp_policy.param_dtype = torch::kBFloat16;
  return report("cast", mesh, sees_new_weights(mesh, cast, torch::kBFloat16)) +
         report("float32", mesh, sees_new_weights(mesh, {}, torch::kFloat));
}

}  // namespace device_steady
