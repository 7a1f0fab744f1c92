// Python on both sides: what torch.distributed.checkpoint wrote is loaded into
// sharded models at several rank counts, saved again, and read by Python.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>

#include "tessera/checkpoint/convert.h"
#include "tessera/checkpoint/reader.h"
#include "tests/checkpoint/block.h"
#include "tests/support/temporary_folder.h"

namespace tessera::checkpoint {
namespace {

using testing::TemporaryFolder;
using namespace std::chrono_literals;

std::string fixture(const std::string& name) {
  return std::string(DCP_FIXTURES "/") + name;
}

// Standard output and error of a command, and whether it succeeded.
std::pair<bool, std::string> run(const std::string& command) {
  std::string output;
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return {false, "popen failed"};
  std::array<char, 4096> buffer{};
  while (const size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    output.append(buffer.data(), got);
  }
  return {::pclose(pipe) == 0, output};
}

// Loads the fixture at `ranks` ranks and saves it to `path`.
void pass_through(const std::string& name, int ranks, const std::string& path) {
  run_ranks(
      ranks,
      [&](const World& world) {
        Trained trained(world, 100);
        const State state = state_of(*trained.block, *trained.optimizer);
        load(fixture(name), state, {.world = world});
        save(path, state, {.world = world});
      },
      30s);
}

TEST(Python, CheckpointsPassThroughEveryRankCountBitByBit) {
  const TemporaryFolder folder;
  std::string list;
  for (const int ranks : {1, 2, 3, 4}) {
    const std::string path = folder / str("ranks-", ranks);
    pass_through("optimizer_adamw_w2", ranks, path);
    EXPECT_EQ(difference(fixture("optimizer_adamw_w2"), path), "") << ranks;
    list += " " + path;
  }
  const std::string flat = folder / "flat";
  pass_through("optimizer_adamw_w2_flat", 2, flat);
  EXPECT_EQ(difference(fixture("optimizer_adamw_w2"), flat), "");
  const char* python = std::getenv("TESSERA_PYTHON");
  ASSERT_NE(python, nullptr) << "set TESSERA_PYTHON";
  const auto [ok, output] =
      run(str("timeout 400 ", python, " ", REFEREE, " ",
              fixture("optimizer_adamw_w2"), list, " ", flat));
  EXPECT_TRUE(ok) << output;
}

// A raw optimizer's state_dict() calls parameters by numbers.
TEST(Python, OptimizersThatNumberTheirParametersAreLoaded) {
  const TemporaryFolder folder;
  const char* python = std::getenv("TESSERA_PYTHON");
  ASSERT_NE(python, nullptr) << "set TESSERA_PYTHON";
  const auto [ok, output] =
      run(str("timeout 400 ", python, " ", NUMBERED, " ", folder.path()));
  ASSERT_TRUE(ok) << output;
  ASSERT_EQ(
      convert(folder / "numbered.pt", folder / "converted", Form::checkpoint)
          .num_left_out,
      0U);
  for (const int ranks : {1, 2, 3}) {
    for (const char* name : {"named", "numbered", "converted"}) {
      const std::string again = folder / str(name, "-", ranks);
      run_ranks(
          ranks,
          [&](const World& world) {
            Trained trained(ranks == 1 ? World() : world, 100);
            const State state = state_of(*trained.block, *trained.optimizer);
            load(folder / name, state, {.world = world});
            save(again, state, {.world = world});
          },
          30s);
      EXPECT_EQ(difference(folder / str("named-", ranks), again), "")
          << name << " at " << ranks;
    }
  }
}

TEST(Python, ModelsOfEveryParallelismAreLoaded) {
  for (const char* name : {"ddp_w2", "fsdp2_w2_uneven", "fsdp2_w4_empty_shards",
                           "hsdp_2x2", "fsdp_tp_2x2_strided"}) {
    for (const int ranks : {1, 3}) {
      const TemporaryFolder folder;
      const std::string path = folder / "again";
      run_ranks(
          ranks,
          [&](const World& world) {
            Trained trained(world, 100);
            const State state = state_of(*trained.block);
            load(fixture(name), state, {.world = world});
            save(path, state, {.world = world});
          },
          30s);
      const CheckpointReader theirs(fixture(name));
      const CheckpointReader ours(path);
      for (const auto& [key, tensor] : ours.metadata().tensors) {
        std::vector<std::byte> a(*num_bytes_of(tensor.dtype, tensor.sizes));
        std::vector<std::byte> b(a.size());
        ours.read_box(key, whole_box(tensor.sizes), a);
        theirs.read_box(key, whole_box(tensor.sizes), b);
        EXPECT_EQ(a, b) << name << " " << key << " at " << ranks;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::checkpoint
