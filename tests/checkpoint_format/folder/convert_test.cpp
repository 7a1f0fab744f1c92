// Checkpoints to safetensors folders, back, and into one file.
#include "tessera/checkpoint/convert.h"

#include <gtest/gtest.h>

#include "tests/checkpoint_format/folder/thread_peers.h"
#include "tests/support/temporary_folder.h"

namespace tessera::checkpoint {
namespace {

using testing::TemporaryFolder;

TEST(Convert, ExportsImportsAndConsolidatesToTheSameBytes) {
  const TemporaryFolder folder;
  const SmallState state{.rows = 7, .factor = 3};
  const auto errors = run_peers(3, [&](const Peers& peers) {
    save_small(folder / "step-1", peers, state);
  });
  ASSERT_EQ(errors, std::vector<std::string>(3));
  uint64_t told = 0;
  convert(folder / "step-1", folder / "one", Form::checkpoint,
          {.progress = [&](uint64_t done, uint64_t) { told = done; }});
  EXPECT_EQ(told, 21U);
  EXPECT_EQ(compare_small(folder / "one", state), "");
  EXPECT_EQ(CheckpointReader(folder / "one")
                .metadata()
                .tensors.at("model.w")
                .boxes.size(),
            1U);
  for (const uint64_t most : {uint64_t{1}, uint64_t{1000}}) {
    convert(folder / "step-1", folder / "weights", Form::safetensors,
            {.from_prefix = "model", .most_file_bytes = most});
    convert(folder / "weights", folder / "again", Form::checkpoint,
            {.to_prefix = "model"});
    const CheckpointReader again(folder / "again");
    const Box whole{{0, 0}, {7, 3}};
    std::vector<std::byte> bytes(21);
    again.read_box("model.w", whole, bytes);
    EXPECT_EQ(bytes, state.bytes_of(whole));
  }
}

}  // namespace
}  // namespace tessera::checkpoint
