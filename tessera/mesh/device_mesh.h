// The ranks of a world laid out in a grid with named axes.
//
//   DeviceMesh mesh = init_device_mesh(world, {.shape = {2, 4},
//                                              .axes = {"replicate",
//                                              "shard"}});
//   mesh["shard"]   // the 4 ranks that share this rank's "replicate"
//   coordinate
//
// A mesh is a cheap handle; copies and slices share the communicators of their
// root mesh.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/comm/world.h"

namespace tessera {

struct MeshOptions {
  std::vector<int64_t> shape = {};     // empty: {world size}
  std::vector<std::string> axes = {};  // empty: "dp_shard", only for 1-D
};

class DeviceMesh {
 public:
  struct State;

  DeviceMesh() = default;  // undefined: stands for "the whole world"
  explicit DeviceMesh(std::shared_ptr<const State> state)
      : state_(std::move(state)) {}

  [[nodiscard]] bool defined() const { return state_ != nullptr; }
  [[nodiscard]] int64_t num_axes() const;
  [[nodiscard]] const std::vector<int64_t>& shape() const;
  [[nodiscard]] const std::vector<std::string>& axes() const;
  [[nodiscard]] bool has_axis(std::string_view axis) const;
  [[nodiscard]] int64_t numel() const;  // ranks in this mesh
  [[nodiscard]] int64_t size(std::string_view axis) const;  // ranks along axis
  [[nodiscard]] int64_t coordinate(std::string_view axis) const;  // this rank's
  /// World ranks, row-major over the axes.
  [[nodiscard]] std::vector<int> ranks() const;

  /// The sub-mesh of these axes that holds this rank.
  /// Errors: InvalidArgument for an unknown or repeated axis, or a new order.
  [[nodiscard]] DeviceMesh operator[](std::string_view axis) const;
  [[nodiscard]] DeviceMesh slice(const std::vector<std::string>& axes) const;
  /// All axes as one, named `name`.
  [[nodiscard]] DeviceMesh flatten(std::string_view name) const;
  /// Of a 1-D mesh of n * size ranks, the `size` neighbours that hold this
  /// rank: of ranks 0..5, blocks of 2 are {0, 1}, {2, 3} and {4, 5}. Errors:
  /// InvalidArgument for another mesh, or a size that does not divide.
  [[nodiscard]] DeviceMesh block(int64_t size) const;

  [[nodiscard]] const World& world() const;
  [[nodiscard]] c10::Device device() const;

  /// The communicator of this 1-D mesh for one purpose ("gather", "reduce",
  /// "control"). Made when first asked for and shared by every mesh of the same
  /// ranks on this root; all ranks must ask in the same order.
  [[nodiscard]] std::shared_ptr<class Communicator> communicator(
      std::string_view purpose) const;
  /// Whether `communicator(purpose)` was asked for before.
  [[nodiscard]] bool has_communicator(std::string_view purpose) const;

  /// "(replicate: 2, shard: 4)"
  [[nodiscard]] std::string describe() const;

 private:
  std::shared_ptr<const State> state_;
};

/// Errors: InvalidArgument unless the product of `shape` is the world size and
///         there is one distinct non-empty name per axis (1 to 3 axes).
[[nodiscard]] DeviceMesh init_device_mesh(const World& world,
                                          const MeshOptions& options = {});

}  // namespace tessera
