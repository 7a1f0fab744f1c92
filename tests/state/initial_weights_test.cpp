// The ways of docs/init.md to first weights, and what each rank holds
// meanwhile.
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/contents.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/module/on_meta.h"
#include "tessera/shard/materialize.h"
#include "tessera/tensor/spread.h"
#include "tests/memory/counting_allocator.h"
#include "tests/state/dicts.h"

namespace tessera {
namespace {

using testing::message_of;
using testing::TemporaryFolder;

constexpr int kRanks = 3;
constexpr int64_t kLayers = 6;
constexpr int64_t kUnit = int64_t{16} << 20;  // one layer, one unit
constexpr int64_t kSlack = 1 << 20;

torch::nn::Sequential tall() {
  torch::nn::Sequential model;
  for (int i = 0; i < kLayers; ++i) {
    model->push_back(
        torch::nn::Linear(torch::nn::LinearOptions(2048, 2048).bias(false)));
  }
  return model;
}

// On the meta device, each layer a unit.
torch::nn::Sequential tall_on_meta(const World& world) {
  auto model = on_meta([] { return tall(); });
  const FullyShardOptions options{.mesh = init_device_mesh(world)};
  for (const auto& layer : *model) fully_shard(*layer.ptr(), options);
  fully_shard(*model, options);
  return model;
}

// What somebody else has trained: layer i is all i + 1.
safetensors::NamedTensors trained_weights() {
  safetensors::NamedTensors weights;
  for (int i = 0; i < kLayers; ++i) {
    weights.emplace_back(str(i, ".weight"), torch::full({2048, 2048}, i + 1.0));
  }
  return weights;
}

void expect_trained(torch::nn::Module& model) {
  const torch::NoGradGuard no_grad;
  for (const auto& item : model.named_parameters()) {
    const float expected = std::stof(item.key()) + 1;
    EXPECT_TRUE(local(item.value()).eq(expected).all().item<bool>())
        << item.key();
  }
}

// Runs `way` on ranks whose allocations are counted, each its own.
void expect_shard_and_one_unit(
    const std::function<void(const World&, torch::nn::Module&)>& way) {
  test::CountingAllocator counting;
  run_ranks(
      kRanks,
      [&](const World& world) {
        test::Bytes mine;
        const test::CountingAllocator::Scope scope(mine);
        auto model = tall_on_meta(world);
        way(world, *model);
        EXPECT_LE(mine.take_peak(),
                  kLayers * kUnit / kRanks + kUnit + kLayers * kSlack);
        expect_trained(*model);
      },
      kDeadline);
}

TEST(InitialWeights, BroadcastFromRank0TakeAShardAndOneUnit) {
  const StateDict whole = dict_of(trained_weights());
  expect_shard_and_one_unit([&](const World& world, torch::nn::Module& model) {
    materialize(model);
    (void)set_model_state_dict(model, world.rank() == 0 ? whole : StateDict(),
                               from_rank0());
  });
}

TEST(InitialWeights, OfAFullDictOnEveryRankTakeAShardAndOneUnit) {
  const StateDict whole = dict_of(trained_weights());
  expect_shard_and_one_unit([&](const World&, torch::nn::Module& model) {
    materialize(model);
    (void)set_model_state_dict(model, whole, full());
  });
}

TEST(InitialWeights, OfSafetensorsTakeAShardAndOneUnit) {
  const TemporaryFolder folder;
  safetensors::save(folder / "w.safetensors", trained_weights());
  const auto weights = checkpoint::open_contents(folder / "w.safetensors");
  checkpoint::write_checkpoint(checkpoint::under(weights, "model"),
                               folder / "step-0");
  expect_shard_and_one_unit([&](const World& world, torch::nn::Module& model) {
    materialize(model);
    // One thread, which is the one that is counted.
    (void)checkpoint::load(folder / "step-0", state_of(model),
                           {.world = world, .num_threads = 1});
  });
}

// --- dicts that give nothing, models that take nothing -----------------------

TEST(SetStateDict, OfAnEmptyDictThatIsNotStrictChangesNothing) {
  run_ranks(
      2,
      [&](const World& world) {
        Trained trained = trained_on(world, 7);
        const StateDict before =
            copy_of(get_model_state_dict(*trained.block, full()));
        StateDictOptions options = full();
        for (const bool whole : {true, false}) {
          options.full_state_dict = whole;
          options.strict = false;
          EXPECT_NO_THROW(
              (void)set_model_state_dict(*trained.block, {}, options));
          options.strict = true;
          EXPECT_THROW((void)set_model_state_dict(*trained.block, {}, options),
                       InvalidArgument);
        }
        EXPECT_EQ(
            difference(get_model_state_dict(*trained.block, full()), before),
            "");
      },
      kDeadline);
}

TEST(SetStateDict, GivesAModelOnMetaItsValuesAndLeavesNoneWithout) {
  const StateDict whole = dict_of(trained_weights());
  StateDict partial = whole;
  std::erase_if(partial, [](const StateEntry& entry) {
    return key_of(entry.path) == "3.weight";
  });
  StateDictOptions options = full();
  options.strict = false;
  std::vector<std::string> errors(2);
  run_ranks(
      2,
      [&](const World& world) {
        auto model = tall_on_meta(world);
        errors[static_cast<size_t>(world.rank())] = message_of<InvalidState>(
            [&] { (void)set_model_state_dict(*model, partial, options); });
        (void)set_model_state_dict(*model, whole, options);
        expect_trained(*model);
      },
      kDeadline);
  EXPECT_EQ(errors[0], errors[1]);
  for (const char* part : {"parameter '3.weight'", "Call materialize first"}) {
    EXPECT_TRUE(contains(errors[0], part)) << errors[0];
  }
}

TEST(SetStateDict, OfAMetaBufferSaysOnEveryRankWhatToCallFirst) {
  std::vector<std::string> errors(2);
  run_ranks(
      2,
      [&](const World& world) {
        const auto build = [] {
          torch::nn::Sequential model(torch::nn::Linear(3, 2));
          model->register_buffer("table", torch::empty({4}));
          return model;
        };
        auto model = on_meta(build);
        fully_shard(*model, {.mesh = init_device_mesh(world)});
        auto other = build();
        errors[static_cast<size_t>(world.rank())] =
            message_of<InvalidState>([&] {
              (void)set_model_state_dict(*model, get_model_state_dict(*other),
                                         full());
            });
      },
      kDeadline);
  EXPECT_EQ(errors[0], errors[1]);
  for (const char* part : {"on the meta device", "Call materialize first"}) {
    EXPECT_TRUE(contains(errors[0], part)) << errors[0];
  }
}

TEST(GetStateDict, OnOneRankAloneEndsByAnErrorThatNamesTheRank) {
  std::string of_caller;
  const std::string error = message_of<Error>([&] {
    run_ranks(
        2,
        [&](const World& world) {
          Trained trained = trained_on(world, 7);
          if (world.rank() > 0) return;
          of_caller = message_of<CommError>(
              [&] { (void)get_model_state_dict(*trained.block, full()); });
        },
        std::chrono::seconds(10));
  });
  EXPECT_TRUE(contains(error, "rank 1: returned, while rank 0 waits")) << error;
  EXPECT_TRUE(contains(of_caller, "rank 1")) << of_caller;
  EXPECT_TRUE(contains(of_caller, "state dict: call it on all ranks"))
      << of_caller;
}

}  // namespace
}  // namespace tessera
