// What the tests of public bug reports share.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/shard/full_parameters.h"
#include "tessera/shard/fully_shard.h"

namespace reports {

namespace nn = torch::nn;
using tessera::DeviceMesh;
using tessera::FullyShardOptions;
using tessera::run_ranks;
using tessera::World;
using torch::Tensor;
using namespace std::chrono_literals;

inline constexpr auto kDeadline = 20s;

/// Numbers that differ from each other and are the same on all ranks.
inline Tensor numbers(at::IntArrayRef sizes, double scale = 0.1) {
  int64_t numel = 1;
  for (const int64_t size : sizes) numel *= size;
  const Tensor index = torch::arange(numel, torch::kFloat);
  return torch::sin(index * 1.7 + 0.3).mul(scale).view(sizes);
}

/// Gives every parameter numbers that depend on its place only.
inline void set_numbers(nn::Module& module) {
  torch::NoGradGuard no_grad;
  double scale = 0.4;
  for (Tensor& parameter : module.parameters()) {
    parameter.copy_(numbers(parameter.sizes(), scale));
    scale *= 0.93;
  }
}

inline FullyShardOptions options(const World& world) {
  return {.mesh = tessera::init_device_mesh(world),
          .debug = tessera::Debug::poison_memory};
}

/// The whole parameters, in order of parameters(). Collective.
inline std::vector<Tensor> whole(nn::Module& module) {
  tessera::FullParameters scope(module, tessera::Write::discard);
  std::vector<Tensor> values;
  for (const Tensor& parameter : module.parameters()) {
    values.push_back(parameter.detach().clone());
  }
  return values;
}

inline void expect_near(const std::vector<Tensor>& got,
                        const std::vector<Tensor>& want,
                        double tolerance = 1e-6) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].sizes(), want[i].sizes()) << "parameter " << i;
    EXPECT_LE((got[i] - want[i]).abs().max().item<double>(), tolerance)
        << "parameter " << i;
  }
}

/// A module of one parameter `w`, whose forward is `w * x`, summed.
struct OneImpl : nn::Module {
  Tensor w;
  explicit OneImpl(at::IntArrayRef sizes) {
    w = register_parameter("w", numbers(sizes));
  }
  Tensor forward(const Tensor& x) { return (w * x).sum(); }
};
TORCH_MODULE(One);

/// The message of the `E` that `body` throws; "" if it throws nothing.
template <class E>
std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

inline bool says(const std::string& message, const std::string& part) {
  return message.find(part) != std::string::npos;
}

}  // namespace reports
