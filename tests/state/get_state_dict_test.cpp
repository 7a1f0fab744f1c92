// Names, values and memory of get_state_dict at one, two and three ranks.
#include <array>
#include <cstdio>
#include <cstdlib>

#include "tests/memory/counting_allocator.h"
#include "tests/state/dicts.h"

namespace tessera {
namespace {

// --- names -------------------------------------------------------------------

std::map<std::string, std::set<std::string>> names_of_python() {
  std::map<std::string, std::set<std::string>> names;
  const char* python = std::getenv("TESSERA_PYTHON");
  if (python == nullptr) return names;
  FILE* pipe =
      ::popen(str("timeout 400 ", python, " " PYTHON_NAMES).c_str(), "r");
  std::array<char, 256> name{};
  std::array<char, 256> key{};
  while (std::fscanf(pipe, "%255s %255s", name.data(), key.data()) == 2) {
    names[name.data()].insert(key.data());
  }
  ::pclose(pipe);
  return names;
}

TEST(StateDicts, HaveTheNamesThatPythonGivesThem) {
  const auto python = names_of_python();
  ASSERT_EQ(python.size(), 7U) << "set TESSERA_PYTHON";
  Trained trained({}, 7);
  Block& block = *trained.block;
  auto& optimizer = *trained.optimizer;
  const StateDictOptions below{.submodules = {block.down.get()}};
  StateDictOptions bare = below;
  bare.keep_submodule_prefixes = false;
  EXPECT_EQ(keys_of(get_model_state_dict(block)), python.at("model"));
  EXPECT_EQ(keys_of(get_model_state_dict(block, full())), python.at("full"));
  EXPECT_EQ(keys_of(get_model_state_dict(block, below)),
            python.at("with_prefix"));
  EXPECT_EQ(keys_of(get_model_state_dict(block, bare)),
            python.at("without_prefix"));
  EXPECT_EQ(keys_of(get_optimizer_state_dict(block, optimizer)),
            python.at("optimizer"));
  EXPECT_EQ(keys_of(get_optimizer_state_dict(
                block, optimizer, {.flatten_optimizer_state_dict = true})),
            python.at("flat"));
  block.down->bias.set_requires_grad(false);
  EXPECT_EQ(
      keys_of(get_model_state_dict(block, {.ignore_frozen_params = true})),
      python.at("trainable"));
}

TEST(StateDicts, OfSeveralOptimizersCountTheirGroupsOn) {
  Trained trained({}, 7);
  Block& block = *trained.block;
  torch::optim::SGD second({block.gain}, torch::optim::SGDOptions(0.5));
  const StateDict dict =
      get_optimizer_state_dict(block, {trained.optimizer.get(), &second});
  EXPECT_TRUE(keys_of(dict).contains("param_groups.1.betas"));
  EXPECT_TRUE(keys_of(dict).contains("param_groups.2.momentum"));
  second.param_groups()[0].options().set_lr(0.25);
  (void)set_optimizer_state_dict(block, {trained.optimizer.get(), &second},
                                 dict);
  EXPECT_EQ(second.param_groups()[0].options().get_lr(), 0.5);
}

// --- get ---------------------------------------------------------------------

TEST(GetStateDict, FullIsWhatOneProcessHasAtEveryWorldSize) {
  for (const int ranks : {1, 2, 3}) {
    run_ranks(
        ranks,
        [&](const World& world) {
          Trained trained = trained_on(world, 7);
          const Optimizers optimizers = {trained.optimizer.get()};
          const auto [model, optimizer] =
              get_state_dict(*trained.block, optimizers, full());
          // Loaded into one process, and taken from it again.
          Trained plain({}, 99);
          const Optimizers plain_optimizers = {plain.optimizer.get()};
          (void)set_state_dict(*plain.block, plain_optimizers,
                               {model, optimizer});
          const auto [plain_model, plain_optimizer] =
              get_state_dict(*plain.block, plain_optimizers);
          EXPECT_EQ(difference(model, plain_model), "");
          EXPECT_EQ(difference(optimizer, plain_optimizer), "");
          const Trained expected = reference(7);
          for (const auto& [name, tensor] : named_tensors(model)) {
            const auto values = expected.block->named_parameters();
            const auto* parameter = values.find(name);
            if (parameter == nullptr) continue;
            EXPECT_TRUE(torch::allclose(tensor, *parameter, 1e-4, 1e-5))
                << name;
          }
        },
        kDeadline);
  }
}

TEST(GetStateDict, FullOnTheHostIsForRank0Alone) {
  run_ranks(
      3,
      [&](const World& world) {
        Trained trained = trained_on(world, 7);
        const StateDict everywhere =
            get_model_state_dict(*trained.block, full());
        const StateDict host =
            get_model_state_dict(*trained.block, full_on_host());
        if (world.rank() == 0) {
          EXPECT_EQ(difference(host, everywhere), "");
        } else {
          EXPECT_TRUE(host.empty());
        }
        const StateDict optimizer = get_optimizer_state_dict(
            *trained.block, *trained.optimizer, full_on_host());
        EXPECT_EQ(optimizer.empty(), world.rank() != 0);
      },
      kDeadline);
}

TEST(GetStateDict, FollowsTrainingUnlessItIsACopy) {
  run_ranks(
      2,
      [&](const World& world) {
        Trained trained = trained_on(world, 7);
        const StateDict live = get_model_state_dict(*trained.block);
        const StateDict host =
            get_model_state_dict(*trained.block, {.cpu_offload = true});
        const StateDict whole = get_model_state_dict(*trained.block, full());
        EXPECT_EQ(difference(live, host), "");
        trained.step(1);
        EXPECT_NE(difference(live, host), "");
        EXPECT_EQ(difference(live, get_model_state_dict(*trained.block)), "");
        EXPECT_NE(
            difference(whole, get_model_state_dict(*trained.block, full())),
            "");
      },
      kDeadline);
}

// --- memory ------------------------------------------------------------------

// Six layers of 16 MiB.
std::shared_ptr<torch::nn::Module> tall_model(const World& world) {
  torch::nn::Sequential model;
  for (int i = 0; i < 6; ++i) {
    model->push_back(
        torch::nn::Linear(torch::nn::LinearOptions(2048, 2048).bias(false)));
  }
  for (const torch::Tensor& weight : model->parameters()) {
    const torch::NoGradGuard no_grad;
    weight.fill_(1);
  }
  fully_shard(*model, {.mesh = init_device_mesh(world)});
  return model.ptr();
}

TEST(StateDicts, TakeNoMoreThanABatchOfMemoryOnRanksThatGetNothing) {
  constexpr int64_t kLayer = int64_t{16} << 20;
  constexpr int64_t kSlack = 1 << 20;
  test::CountingAllocator counting;
  run_ranks(
      3,
      [&](const World& world) {
        const auto model = tall_model(world);
        test::Bytes mine;
        const test::CountingAllocator::Scope scope(mine);
        const StateDict dict = get_model_state_dict(*model, full_on_host());
        const int64_t gathered = mine.take_peak();
        (void)set_model_state_dict(*model, dict, from_rank0());
        const int64_t broadcast = mine.take_peak() - mine.now();
        // A gather of three layers, rounded up to whole rows for each rank.
        if (world.rank() > 0) {
          EXPECT_LE(gathered, 4 * kLayer + kLayer + kLayer / 3 + kSlack);
        }
        EXPECT_LE(broadcast, kLayer + kSlack);
      },
      kDeadline);
}

}  // namespace
}  // namespace tessera
