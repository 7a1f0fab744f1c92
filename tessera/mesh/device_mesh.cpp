#include "tessera/mesh/device_mesh.h"

#include <map>
#include <mutex>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/communicator.h"
#include "tessera/mesh/rank_grid.h"

namespace tessera {
namespace {

// The communicators of one init_device_mesh call and all its slices.
class MeshCommunicators {
 public:
  explicit MeshCommunicators(const World& world) : id_(world.next_id()) {}

  std::shared_ptr<Communicator> get(const World& world, const RankGrid& grid,
                                    std::string_view purpose) {
    const std::lock_guard lock(mutex_);
    auto& entry = made_[{grid.ranks(), std::string(purpose)}];
    if (!entry) {
      entry = world.make_communicator(name_of(grid, purpose), grid.ranks());
    }
    return entry;
  }

  [[nodiscard]] bool has(const RankGrid& grid, std::string_view purpose) {
    const std::lock_guard lock(mutex_);
    return made_.contains({grid.ranks(), std::string(purpose)});
  }

 private:
  // A second mesh of one world may have the same axes: number all but the
  // first, so that names stay new.
  [[nodiscard]] std::string name_of(const RankGrid& grid,
                                    std::string_view purpose) const {
    const std::string name = str(grid.axes()[0], "/", purpose);
    return id_ == 0 ? name : str(name, "#", id_);
  }

  int64_t id_;
  std::mutex mutex_;
  std::map<std::pair<std::vector<int>, std::string>,
           std::shared_ptr<Communicator>>
      made_;
};

}  // namespace

struct DeviceMesh::State {
  World world;
  RankGrid grid;
  std::shared_ptr<MeshCommunicators> communicators;
};

namespace {

const DeviceMesh::State& checked(
    const std::shared_ptr<const DeviceMesh::State>& state) {
  require<InvalidState>(state != nullptr, [] {
    return str(
        "DeviceMesh: this handle is empty; make it by init_device_mesh().");
  });
  return *state;
}

std::vector<std::string> default_axes(const MeshOptions& options,
                                      size_t num_axes) {
  if (!options.axes.empty()) return options.axes;
  require<InvalidArgument>(num_axes == 1, [&] {
    return str("init_device_mesh: got ", num_axes,
               " axes without names; name them in MeshOptions::axes.");
  });
  return {"dp_shard"};
}

}  // namespace

int64_t DeviceMesh::num_axes() const {
  return static_cast<int64_t>(shape().size());
}

const std::vector<int64_t>& DeviceMesh::shape() const {
  return checked(state_).grid.shape();
}

const std::vector<std::string>& DeviceMesh::axes() const {
  return checked(state_).grid.axes();
}

bool DeviceMesh::has_axis(std::string_view axis) const {
  return checked(state_).grid.has_axis(axis);
}

int64_t DeviceMesh::numel() const { return checked(state_).grid.numel(); }

int64_t DeviceMesh::size(std::string_view axis) const {
  return checked(state_).grid.size(axis);
}

int64_t DeviceMesh::coordinate(std::string_view axis) const {
  return checked(state_).grid.coordinate(axis, world().rank());
}

std::vector<int> DeviceMesh::ranks() const {
  return checked(state_).grid.ranks();
}

DeviceMesh DeviceMesh::operator[](std::string_view axis) const {
  return slice({std::string(axis)});
}

DeviceMesh DeviceMesh::slice(const std::vector<std::string>& axes) const {
  const State& state = checked(state_);
  return DeviceMesh(std::make_shared<State>(
      State{.world = state.world,
            .grid = state.grid.slice(axes, state.world.rank()),
            .communicators = state.communicators}));
}

DeviceMesh DeviceMesh::flatten(std::string_view name) const {
  const State& state = checked(state_);
  return DeviceMesh(
      std::make_shared<State>(State{.world = state.world,
                                    .grid = state.grid.flatten(name),
                                    .communicators = state.communicators}));
}

DeviceMesh DeviceMesh::block(int64_t size) const {
  const State& state = checked(state_);
  return DeviceMesh(std::make_shared<State>(
      State{.world = state.world,
            .grid = state.grid.block(size, state.world.rank()),
            .communicators = state.communicators}));
}

const World& DeviceMesh::world() const { return checked(state_).world; }

c10::Device DeviceMesh::device() const { return world().device(); }

std::shared_ptr<Communicator> DeviceMesh::communicator(
    std::string_view purpose) const {
  const State& state = checked(state_);
  require<InvalidState>(num_axes() == 1, [&] {
    return str("DeviceMesh: a communicator ('", purpose,
               "') needs one axis, but this mesh is ", describe(),
               "; slice or flatten it first.");
  });
  return state.communicators->get(state.world, state.grid, purpose);
}

bool DeviceMesh::has_communicator(std::string_view purpose) const {
  const State& state = checked(state_);
  return state.communicators->has(state.grid, purpose);
}

std::string DeviceMesh::describe() const {
  return checked(state_).grid.describe();
}

DeviceMesh init_device_mesh(const World& world, const MeshOptions& options) {
  const std::vector<int64_t> shape = options.shape.empty()
                                         ? std::vector<int64_t>{world.size()}
                                         : options.shape;
  RankGrid grid(shape, default_axes(options, shape.size()));
  require<InvalidArgument>(grid.numel() == world.size(), [&] {
    return str("init_device_mesh: the mesh ", grid.describe(), " has ",
               grid.numel(), " ranks, the world ", world.size(),
               "; make them equal.");
  });
  return DeviceMesh(std::make_shared<DeviceMesh::State>(DeviceMesh::State{
      .world = world,
      .grid = std::move(grid),
      .communicators = std::make_shared<MeshCommunicators>(world)}));
}

}  // namespace tessera
