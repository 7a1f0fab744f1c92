#include "tessera/mesh/device_mesh.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/base/error.h"
#include "tessera/comm/communicator.h"

namespace tessera {
namespace {

using Ranks = std::vector<int>;

int64_t sum_over(Communicator& comm, int64_t value) {
  auto tensor = torch::full({1}, value);
  comm.all_reduce(tensor, ReduceOp::sum, {}).wait();
  return tensor.item<int64_t>();
}

TEST(DeviceMesh, IsOneAxisOverTheWorldByDefault) {
  for (int world_size = 1; world_size <= 4; ++world_size) {
    run_ranks(world_size, [](const World& world) {
      const DeviceMesh mesh = init_device_mesh(world);
      EXPECT_TRUE(mesh.defined());
      EXPECT_EQ(mesh.num_axes(), 1);
      EXPECT_EQ(mesh.axes(), std::vector<std::string>{"dp_shard"});
      EXPECT_EQ(mesh.size("dp_shard"), world.size());
      EXPECT_EQ(mesh.coordinate("dp_shard"), world.rank());
      EXPECT_EQ(mesh.device(), world.device());
      EXPECT_TRUE(mesh.world() == world);
      auto comm = mesh.communicator("gather");
      EXPECT_EQ(comm->name(), "dp_shard/gather");
      EXPECT_EQ(sum_over(*comm, 1), world.size());
    });
  }
}

TEST(DeviceMesh, SlicesCommunicateAlongTheirAxisOnly) {
  run_ranks(4, [](const World& world) {
    const DeviceMesh mesh = init_device_mesh(
        world, {.shape = {2, 2}, .axes = {"replicate", "shard"}});
    EXPECT_EQ(mesh.describe(), "(replicate: 2, shard: 2)");
    const int row = world.rank() / 2;
    const int column = world.rank() % 2;
    EXPECT_EQ(mesh["shard"].ranks(), (Ranks{2 * row, 2 * row + 1}));
    EXPECT_EQ(mesh["replicate"].ranks(), (Ranks{column, column + 2}));
    EXPECT_EQ(sum_over(*mesh["shard"].communicator("gather"), world.rank()),
              4 * row + 1);
    EXPECT_EQ(sum_over(*mesh["replicate"].communicator("reduce"), world.rank()),
              2 * column + 2);
    EXPECT_EQ(
        sum_over(*mesh.flatten("all").communicator("control"), world.rank()),
        6);
  });
}

TEST(DeviceMesh, SlicesThreeAxes) {
  run_ranks(4, [](const World& world) {
    const DeviceMesh mesh = init_device_mesh(
        world, {.shape = {2, 1, 2}, .axes = {"pp", "dp", "tp"}});
    const DeviceMesh slice = mesh.slice({"pp", "tp"});
    EXPECT_EQ(slice.ranks(), (Ranks{0, 1, 2, 3}));
    EXPECT_EQ(slice["tp"].ranks(), mesh["tp"].ranks());
    EXPECT_EQ(mesh["dp"].ranks(), Ranks{world.rank()});
    EXPECT_EQ(sum_over(*mesh["dp"].communicator("gather"), 7), 7);
  });
}

TEST(DeviceMesh, SharesCommunicatorsBetweenSlicesOfEqualRanks) {
  run_ranks(2, [](const World& world) {
    const DeviceMesh mesh =
        init_device_mesh(world, {.shape = {1, 2}, .axes = {"r", "s"}});
    auto first = mesh["s"].communicator("gather");
    EXPECT_EQ(first, mesh["s"].communicator("gather"));
    EXPECT_EQ(first, mesh.flatten("all").communicator("gather"));
    EXPECT_NE(first, mesh["s"].communicator("reduce"));
    EXPECT_NE(first, mesh["r"].communicator("gather"));
  });
}

TEST(DeviceMesh, TwoOfOneWorldDoNotDisturbEachOther) {
  run_ranks(2, [](const World& world) {
    const DeviceMesh a = init_device_mesh(world);
    const DeviceMesh b = init_device_mesh(world);
    auto from_a = a.communicator("gather");
    auto from_b = b.communicator("gather");
    EXPECT_NE(from_a, from_b);
    EXPECT_NE(from_a->name(), from_b->name());
    EXPECT_EQ(sum_over(*from_a, 1), 2);
    EXPECT_EQ(sum_over(*from_b, 2), 4);
  });
}

TEST(DeviceMesh, RefusesWhatIsNoMeshOfTheWorld) {
  run_ranks(2, [](const World& world) {
    EXPECT_THROW((void)init_device_mesh(world, {.shape = {3}}),
                 InvalidArgument);
    EXPECT_THROW((void)init_device_mesh(world, {.shape = {2, 1}}),
                 InvalidArgument);
    EXPECT_THROW(
        (void)init_device_mesh(world, {.shape = {2, 1}, .axes = {"a", "a"}}),
        InvalidArgument);
    const DeviceMesh mesh =
        init_device_mesh(world, {.shape = {2, 1}, .axes = {"a", "b"}});
    EXPECT_THROW((void)mesh["c"], InvalidArgument);
    EXPECT_THROW((void)mesh.communicator("gather"), InvalidState);
  });
}

TEST(DeviceMesh, SaysThatAnEmptyHandleIsEmpty) {
  const DeviceMesh mesh;
  EXPECT_FALSE(mesh.defined());
  EXPECT_THROW((void)mesh.ranks(), InvalidState);
  EXPECT_THROW((void)init_device_mesh(World()), InvalidState);
}

}  // namespace
}  // namespace tessera
