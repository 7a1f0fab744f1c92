// Saves and checks a state with a tensor of more than 4 GiB; see
// large_checkpoint.py, which has the same values.
//
//   large_checkpoint save FOLDER
//   large_checkpoint check FOLDER
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <string>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/reader.h"

namespace {

using namespace tessera;

constexpr int64_t kLarge = (int64_t{4} << 28) + (1 << 24);  // int32: 4.06 GiB
constexpr int64_t kSmall = 1000;
constexpr int64_t kFactor = 1640531527;  // odd: no two values are the same

// Neighbours, and values 4 GiB apart, differ.
torch::Tensor values(int64_t count, int64_t first) {
  return torch::arange(count, torch::kInt).mul_(kFactor).add_(first);
}

State state_of(const std::vector<torch::Tensor>& tensors) {
  State state;
  state.add("a_before", tensors.at(0));
  state.add("b_large", tensors.at(1));
  state.add("c_after", tensors.at(2));
  return state;
}

int save(const std::string& folder) {
  checkpoint::save(folder, state_of({values(kSmall, 1), values(kLarge, 2),
                                     values(kSmall, 3)}));
  return 0;
}

int check(const std::string& folder) {
  const std::vector<torch::Tensor> tensors = {
      torch::zeros(kSmall, torch::kInt), torch::zeros(kLarge, torch::kInt),
      torch::zeros(kSmall, torch::kInt)};
  (void)checkpoint::load(folder, state_of(tensors));
  int failures = 0;
  for (int i = 0; i < 3; ++i) {
    const torch::Tensor expected = values(tensors[i].numel(), i + 1);
    if (!torch::equal(tensors[i], expected)) ++failures;
  }
  const uint64_t bytes = checkpoint::CheckpointReader(folder).verify();
  std::printf("%d of 3 tensors differ; %llu bytes verified\n", failures,
              static_cast<unsigned long long>(bytes));
  return failures == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string verb = argc == 3 ? argv[1] : "";
  try {
    if (verb == "save") return save(argv[2]);
    if (verb == "check") return check(argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "large_checkpoint: %s\n", error.what());
    return 1;
  }
  std::fprintf(stderr, "usage: large_checkpoint save|check FOLDER\n");
  return 2;
}
