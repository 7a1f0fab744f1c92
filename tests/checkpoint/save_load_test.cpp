// Models and optimizers through checkpoints, at any number of ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "tessera/checkpoint/reader.h"
#include "tests/checkpoint/block.h"
#include "tests/support/temporary_folder.h"

namespace tessera::checkpoint {
namespace {

using testing::message_of;
using testing::TemporaryFolder;
using namespace std::chrono_literals;

constexpr auto kDeadline = 30s;

World world_if(int ranks, const World& world) {
  return ranks == 1 ? World() : world;
}

TEST(Checkpoint, ComesBackAtAnyNumberOfRanks) {
  const TemporaryFolder folder;
  run_ranks(
      3,
      [&](const World& world) {
        Trained trained(world, 7);
        for (int step = 0; step < 2; ++step) trained.step(step);
        State state = state_of(*trained.block, *trained.optimizer);
        state.add("step", 2).add("name", "Größe");
        save(folder / "step-2", state, {.world = world});
      },
      kDeadline);
  for (const int ranks : {1, 2, 4}) {
    const std::string again = folder / str("again-", ranks);
    run_ranks(
        ranks,
        [&](const World& world) {
          Trained other(world_if(ranks, world), 100);
          State state = state_of(*other.block, *other.optimizer);
          state.add("step", 0).add("name", "");
          const KeyReport report =
              load(folder / "step-2", state, {.world = world});
          EXPECT_TRUE(report.missing.empty());
          EXPECT_EQ(state.value("step").as_int(), 2);
          EXPECT_EQ(state.value("name").as_text(), "Größe");
          save(again, state, {.world = world});
        },
        kDeadline);
    EXPECT_EQ(difference(folder / "step-2", again), "") << ranks;
  }
}

TEST(Checkpoint, StoppedAndResumedEqualsNeverStopped) {
  const TemporaryFolder folder;
  run_ranks(
      2,
      [&](const World& world) {
        Trained never(world, 7);
        Trained stopped(world, 7);
        for (int step = 0; step < 3; ++step) {
          never.step(step);
          stopped.step(step);
        }
        save(folder / "step-3", state_of(*stopped.block, *stopped.optimizer));
        Trained resumed(world, 55);
        load(folder / "step-3", state_of(*resumed.block, *resumed.optimizer));
        for (int step = 3; step < 6; ++step) {
          never.step(step);
          resumed.step(step);
        }
        save(folder / "never", state_of(*never.block, *never.optimizer));
        save(folder / "resumed", state_of(*resumed.block, *resumed.optimizer));
      },
      kDeadline);
  EXPECT_EQ(difference(folder / "never", folder / "resumed"), "");
}

TEST(Checkpoint, OfAnOptimizerThatNeverSteppedSaysStepZero) {
  const TemporaryFolder folder;
  Trained fresh({}, 7);
  save(folder / "a", state_of(*fresh.block, *fresh.optimizer));
  const CheckpointReader reader(folder / "a");
  float step = 7;
  reader.read_box("optim.state.up.bias.step", {},
                  std::as_writable_bytes(std::span(&step, 1)));
  EXPECT_EQ(step, 0.0F);
}

// Python's get_optimizer_state_dict gives no state at all then.
TEST(Checkpoint, OfAnOptimizerThatHasGradientsButNeverSteppedSaysStepZero) {
  const TemporaryFolder folder;
  Trained fresh({}, 7);
  fresh.block->forward(torch::ones({2, 3})).sum().backward();
  save(folder / "a", state_of(*fresh.block, *fresh.optimizer));
  const CheckpointReader reader(folder / "a");
  float step = 7;
  reader.read_box("optim.state.up.bias.step", {},
                  std::as_writable_bytes(std::span(&step, 1)));
  EXPECT_EQ(step, 0.0F);
  EXPECT_TRUE(
      reader.metadata().tensors.contains("optim.state.up.weight.exp_avg"));
}

// What of this process was in memory at most since the last call.
int64_t take_peak_memory() {
  std::ifstream status("/proc/self/status");
  int64_t kib = 0;
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) kib = std::stoll(line.substr(6));
  }
  std::ofstream("/proc/self/clear_refs") << 5;
  return kib << 10;
}

TEST(Checkpoint, TakesLessThan256MiBBesideTheStateToLoadWhateverItsSize) {
  constexpr int64_t kMiB = 1 << 20;
#ifdef __SANITIZE_ADDRESS__  // it keeps 256 MiB of freed memory
  constexpr int64_t kMost = 512 * kMiB;
#else
  constexpr int64_t kMost = 256 * kMiB;
#endif
  const TemporaryFolder folder;
  State same;
  same.add("w", torch::full({80, kMiB}, 0.75F));  // 320 MiB
  save(folder / "a", same);
  State other;
  const torch::Tensor half = torch::zeros({80, kMiB}, torch::kBFloat16);
  other.add("w", half);
  for (const State& state : {same, other}) {
    (void)take_peak_memory();
    const int64_t before = take_peak_memory();
    load(folder / "a", state);
    EXPECT_LE(take_peak_memory() - before, kMost);
  }
  EXPECT_TRUE(half.eq(0.75).all().item<bool>());
}

TEST(Checkpoint, WithOtherKeysSaysWhichAreMissingAndWhichUnexpected) {
  const TemporaryFolder folder;
  const auto linear = [] { return torch::nn::Linear(2, 2); };
  torch::nn::Sequential two(linear(), linear());
  torch::nn::Sequential one(linear());
  torch::nn::Sequential three(linear(), linear(), linear());
  save(folder / "two", state_of(*two));
  const auto error_of = [&](torch::nn::Module& model) {
    return message_of<CheckpointError>(
        [&] { load(folder / "two", state_of(model)); });
  };
  EXPECT_NE(error_of(*one).find("has 'model.1.bias', 'model.1.weight'"),
            std::string::npos)
      << error_of(*one);
  EXPECT_NE(error_of(*three).find("lacks 'model.2.bias', 'model.2.weight'"),
            std::string::npos)
      << error_of(*three);
  const KeyReport report =
      load(folder / "two", state_of(*three), {.strict = Strict::no});
  EXPECT_EQ(report.missing.size(), 2U);
  EXPECT_TRUE(torch::equal(three[1]->as<torch::nn::Linear>()->weight,
                           two[1]->as<torch::nn::Linear>()->weight));
}

TEST(Checkpoint, OfEveryDtypeAndStrideIsLoadedAndConverted) {
  const TemporaryFolder folder;
  const auto make = [](int64_t from) {
    std::map<std::string, torch::Tensor> tensors;
    for (const auto type :
         {at::kDouble,          at::kFloat,         at::kHalf,
          at::kBFloat16,        at::kLong,          at::kInt,
          at::kShort,           at::kChar,          at::kByte,
          at::kComplexFloat,    at::kComplexDouble, at::kComplexHalf,
          at::kUInt16,          at::kUInt32,        at::kUInt64,
          at::kFloat8_e5m2,     at::kFloat8_e4m3fn, at::kFloat8_e5m2fnuz,
          at::kFloat8_e4m3fnuz, at::kFloat8_e8m0fnu}) {
      const auto size = static_cast<int64_t>(c10::elementSize(type));
      tensors[c10::toString(type)] =
          torch::arange(from, from + 6 * size, torch::kByte)
              .view(type)
              .view({2, 3});
    }
    const torch::Tensor ramp = torch::arange(from, from + 12).view({3, 4});
    tensors["transposed"] = ramp.t();
    tensors["empty"] = torch::zeros({0, 3});
    tensors["scalar"] = torch::tensor(static_cast<float>(from));
    return tensors;
  };
  State saved;
  State target;
  const auto from = make(1);
  const auto into = make(60);
  for (const auto& [name, tensor] : from) saved.add(name, tensor);
  for (const auto& [name, tensor] : into) target.add(name, tensor);
  save(folder / "a", saved);
  load(folder / "a", target);
  for (const auto& [name, tensor] : into) {
    const torch::Tensor got = tensor.contiguous();
    const torch::Tensor expected = from.at(name).contiguous();
    const auto* bytes = static_cast<const char*>(expected.const_data_ptr());
    ASSERT_EQ(got.nbytes(), expected.nbytes()) << name;
    EXPECT_TRUE(std::equal(bytes, bytes + expected.nbytes(),
                           static_cast<const char*>(got.const_data_ptr())))
        << name;
  }
  const torch::Tensor wider = torch::zeros({2, 3}, torch::kDouble);
  State converted;
  converted.add("Float", wider);
  load(folder / "a", converted);
  EXPECT_TRUE(torch::equal(wider, from.at("Float").to(torch::kDouble)));
}

TEST(Checkpoint, ThatIsMissingFailsTheSameOnEveryRank) {
  const TemporaryFolder folder;
  std::vector<std::string> errors(2);
  run_ranks(
      2,
      [&](const World& world) {
        Trained trained(world, 7);
        errors[world.rank()] = message_of<CheckpointError>(
            [&] { load(folder / "nothing", state_of(*trained.block)); });
      },
      kDeadline);
  EXPECT_EQ(errors[0], errors[1]);
  EXPECT_NE(errors[0].find("nothing' is no checkpoint"), std::string::npos)
      << errors[0];
}

TEST(Checkpoint, ValuesOfNestedKindsComeBackAsTheyWere) {
  const TemporaryFolder folder;
  const Value nested = Value::dict(
      {{"epoch", 3},
       {"groups", Value::list({Value::dict({{"lr", 0.5}}), Value::dict({})})},
       {"numbers", Value::list({1, 2})},
       {"pair", Value::tuple({true, Value()})},
       {"bytes", Value::bytes(std::string("\0\xff", 2))}});
  Value loaded;
  State state;
  state.add("loader", std::make_shared<ValueState>(
                          [&] { return nested; },
                          [&](const Value& value) { loaded = value; }));
  save(folder / "a", state);
  load(folder / "a", state);
  EXPECT_EQ(loaded.at("epoch"), Value(3));
  EXPECT_EQ(loaded.at("numbers"), nested.at("numbers"));
  EXPECT_EQ(loaded.at("pair"), nested.at("pair"));
  EXPECT_EQ(loaded.at("bytes"), nested.at("bytes"));
  EXPECT_EQ(loaded.at("groups").items().at(0), Value::dict({{"lr", 0.5}}));
}

TEST(Checkpoint, WithoutAValueLeavesItAsItIsOrSaysSo) {
  const TemporaryFolder folder;
  State saved;
  saved.add("config", Value::dict({{"lr", 0.5}}));
  save(folder / "a", saved);
  std::vector<Value> given;
  State state;
  state.add("step", 5)
      .add("config", Value::dict({{"lr", 0.1}, {"name", "b"}}))
      .add("loader", std::make_shared<ValueState>(
                         [] {
                           return Value::dict({{"epoch", 3}});
                         },
                         [&](const Value& value) { given.push_back(value); }));
  const std::string error =
      message_of<CheckpointError>([&] { load(folder / "a", state); });
  EXPECT_NE(error.find("lacks 'config.name', 'loader.epoch', 'step'"),
            std::string::npos)
      << error;
  const KeyReport report = load(folder / "a", state, {.strict = Strict::no});
  EXPECT_EQ(report.missing,
            (std::vector<std::string>{"config.name", "loader.epoch", "step"}));
  EXPECT_EQ(state.value("step"), Value(5));
  EXPECT_EQ(state.value("config"), Value::dict({{"lr", 0.5}, {"name", "b"}}));
  EXPECT_TRUE(given.empty());
}

// A message of a save shows the first characters of each value.
TEST(Checkpoint, HoldsTextsOfAnyLengthInAnyAlphabet) {
  const TemporaryFolder folder;
  std::string text = "a";
  for (int i = 0; i < 300; ++i) text += "\u00f6\u20ac";
  State state;
  for (int skipped = 0; skipped < 6; ++skipped) {
    state.add(str("text", skipped), std::string(skipped, 'b') + text);
  }
  save(folder / "a", state);
  State loaded;
  loaded.add("text3", "");
  load(folder / "a", loaded);
  EXPECT_EQ(loaded.value("text3").as_text(), "bbb" + text);
}

// A `.metadata` may say so.
TEST(Checkpoint, AValueThatIsAlsoTheNameOfOthersIsRefused) {
  EXPECT_NE(message_of<CheckpointError>([] {
              (void)nested_value({{{}, Value(1)}, {{"a"}, Value(2)}});
            }).find("is the name of others, too"),
            std::string::npos);
}

// They say how keys are nested; PyTorch loads without them.
TEST(Checkpoint, WithoutPathsIsLoadedByItsKeys) {
  const TemporaryFolder folder;
  State saved;
  saved.add("step", 7).add("lr", Value::dict({{"now", 0.5}}));
  save(folder / "a", saved);
  Metadata metadata = CheckpointReader(folder / "a").metadata();
  metadata.paths.clear();
  testing::write_bytes(folder / "a/.metadata",
                       write_metadata(metadata, "id", "save"));
  std::filesystem::remove(folder / "a/tessera_checksums.json");
  State state;
  state.add("step", 0).add("lr", Value::dict({{"now", 0.0}}));
  load(folder / "a", state);
  EXPECT_EQ(state.value("step"), Value(7));
  EXPECT_EQ(state.value("lr").at("now"), Value(0.5));
}

// As PyTorch before 2.4 saves what holds no tensor.
class OneItem final : public Stateful {
 public:
  explicit OneItem(Value value) : value_(std::move(value)) {}
  StateDict state_dict() override { return {{{}, value_}}; }
  StateDict targets(const Stored&) override { return {}; }
  void loaded(const StateDict&, const Stored&) override {}

 private:
  Value value_;
};

TEST(Checkpoint, OfADictThatIsOneItemIsLoadedLikeItsParts) {
  const TemporaryFolder folder;
  const Value config = Value::dict(
      {{"lr", 0.5}, {"data", Value::dict({{"seed", 3}, {"name", "text"}})}});
  State saved;
  saved.add("config", std::make_shared<OneItem>(config));
  save(folder / "a", saved);
  ASSERT_TRUE(
      CheckpointReader(folder / "a").metadata().values.contains("config"));
  State state;
  state.add("config",
            Value::dict({{"lr", 0},
                         {"data", Value::dict({{"seed", 0}, {"name", ""}})}}));
  EXPECT_TRUE(load(folder / "a", state).missing.empty());
  EXPECT_EQ(state.value("config").at("lr"), Value(0.5));
  EXPECT_EQ(state.value("config").at("data").at("seed"), Value(3));
  State more;
  more.add("config", Value::dict({{"lr", 0}, {"decay", 0}}));
  EXPECT_NE(message_of<CheckpointError>([&] {
              load(folder / "a", more);
            }).find("lacks 'config.decay'"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera::checkpoint
