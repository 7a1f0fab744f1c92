// The state of a ZeroRedundancyOptimizer in checkpoints, state dicts and
// archives: that of the optimizer that it wraps.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>

#include "tessera/optim/zero_redundancy_optimizer.h"
#include "tessera/state/get_state_dict.h"
#include "tessera/state/set_state_dict.h"
#include "tests/checkpoint/block.h"
#include "tests/support/temporary_folder.h"

namespace tessera::checkpoint {
namespace {

using testing::TemporaryFolder;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::OptimizerParamGroup;
using torch::optim::SGDOptions;

constexpr std::chrono::seconds kDeadline{30};

// A block that is on every rank whole, and an optimizer of two of its groups:
// a plain one without a world, else one that divides its state.
template <class Wrapped, class Options>
struct Divided {
  Trained trained;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  ZeroRedundancyOptimizer<Wrapped>* zero = nullptr;

  Divided(const World& world, int seed, const Options& options,
          BucketView view = BucketView::off)
      : trained({}, seed) {
    const auto groups = with(trained.optimizer->param_groups(), options);
    if (!world.defined()) {
      optimizer = std::make_unique<Wrapped>(groups, options);
      return;
    }
    auto own = std::make_unique<ZeroRedundancyOptimizer<Wrapped>>(
        groups, options,
        ZeroOptions{.group = distributed::new_group(world),
                    .parameters_as_bucket_view = view});
    zero = own.get();
    optimizer = std::move(own);
  }

  static std::vector<OptimizerParamGroup> with(
      const std::vector<OptimizerParamGroup>& groups, const Options& options) {
    std::vector<OptimizerParamGroup> result;
    for (const auto& group : groups) {
      result.emplace_back(group.params(), std::make_unique<Options>(options));
      result.back().options().set_lr(group.options().get_lr());
    }
    return result;
  }

  void step(int64_t number) {
    const torch::Tensor x =
        torch::arange(number, number + 12, torch::kFloat).view({4, 3}) / 16;
    trained.block->forward(x).pow(2).mean().backward();
    optimizer->step();
    optimizer->zero_grad();
  }
  void take_values_of(const Divided& other) const {
    const torch::NoGradGuard no_grad;
    const auto own = trained.block->parameters();
    const auto values = other.trained.block->parameters();
    for (size_t i = 0; i < own.size(); ++i) own[i].copy_(values[i]);
  }
  State state() { return state_of(*trained.block, *optimizer); }
};

template <class Own>
void expect_equal(const Own& got, const Own& want, const std::string& what) {
  const auto all = want.trained.block->parameters();
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_TRUE(torch::equal(got.trained.block->parameters()[i], all[i]))
        << what << " " << i;
  }
}

using DividedAdamW = Divided<torch::optim::AdamW, AdamWOptions>;

// Saves after two steps, wrapped at several numbers of ranks and not; then
// continues each from each.
template <class Wrapped, class Options>
void expect_same_files(const Options& options) {
  const TemporaryFolder folder;
  using Own = Divided<Wrapped, Options>;
  Own plain({}, 7, options);
  for (const int step : {0, 1}) plain.step(step);
  save(folder / "plain-1", plain.state());
  plain.step(2);
  save(folder / "plain-2", plain.state());
  const auto run = [&](const World& world, Own& own, const std::string& name) {
    const std::string path = folder / name;
    save(path, own.state(), {.world = world});
    if (world.rank() != 0) return;
    EXPECT_EQ(difference(folder / "plain-1", path), "");
  };
  for (const int num_ranks : {1, 2, 3, 4}) {
    run_ranks(
        num_ranks,
        [&](const World& world) {
          Own own(world, 7, options, BucketView::on);
          for (const int step : {0, 1}) own.step(step);
          run(world, own, str("own-", num_ranks));
        },
        kDeadline);
  }
  for (const int num_ranks : {1, 3}) {
    for (const char* from : {"plain-1", "own-2", "own-4"}) {
      run_ranks(
          num_ranks,
          [&](const World& world) {
            Own own(world, 100, options);
            load(folder / from, own.state(), {.world = world});
            run(world, own, "again");
            own.step(2);
            save(folder / "on", own.state(), {.world = world});
          },
          kDeadline);
      EXPECT_EQ(difference(folder / "plain-2", folder / "on"), "") << from;
    }
  }
  Own other({}, 100, options);
  load(folder / "own-3", other.state());
  other.step(2);
  save(folder / "on", other.state());
  EXPECT_EQ(difference(folder / "plain-2", folder / "on"), "");
}

TEST(ZeroState, FilesAreThoseOfAdamW) {
  expect_same_files<torch::optim::AdamW>(AdamWOptions(0).amsgrad(true));
}

TEST(ZeroState, FilesAreThoseOfAdam) {
  expect_same_files<torch::optim::Adam>(AdamOptions(0));
}

TEST(ZeroState, FilesAreThoseOfSGD) {
  expect_same_files<torch::optim::SGD>(SGDOptions(0).momentum(0.9));
  expect_same_files<torch::optim::SGD>(SGDOptions(0));
}

TEST(ZeroState, FilesAreThoseOfTheFusedAdamW) {
  expect_same_files<AdamW>(AdamWOptions(0));
}

TEST(ZeroState, AnOptimizerThatIsNotSavedIsNamedWrappedToo) {
  run_ranks(
      2,
      [&](const World& world) {
        Divided<torch::optim::RMSprop, torch::optim::RMSpropOptions> own(
            world, 1, {0.1});
        EXPECT_THROW((void)own.state().parts().at(1).second->state_dict(),
                     Unsupported);
      },
      kDeadline);
}

// What torch wrote passes through it bit by bit; what it writes, torch reads.
TEST(ZeroState, PythonReadsWhatItSaves) {
  const TemporaryFolder folder;
  const std::string fixture = DCP_FIXTURES "/optimizer_adamw_w2";
  std::string list;
  for (const int num_ranks : {2, 3}) {
    const std::string path = folder / str("ranks-", num_ranks);
    run_ranks(
        num_ranks,
        [&](const World& world) {
          DividedAdamW own(world, 100, {0.5});
          load(fixture, own.state(), {.world = world});
          save(path, own.state(), {.world = world});
        },
        kDeadline);
    EXPECT_EQ(difference(fixture, path), "") << num_ranks;
    list += " " + path;
  }
  const char* python = std::getenv("TESSERA_PYTHON");
  ASSERT_NE(python, nullptr) << "set TESSERA_PYTHON";
  const std::string command =
      str("timeout 400 ", python, " ", REFEREE, " ", fixture, list, " 2>&1");
  FILE* pipe = ::popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string output;
  std::array<char, 4096> buffer{};
  while (const size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    output.append(buffer.data(), got);
  }
  EXPECT_EQ(::pclose(pipe), 0) << output;
}

TEST(ZeroState, LoadingMakesStateOnTheOwnerAlone) {
  const TemporaryFolder folder;
  DividedAdamW plain({}, 7, {0.1});
  plain.step(0);
  save(folder / "plain", plain.state());
  run_ranks(
      3,
      [&](const World& world) {
        DividedAdamW own(world, 100, {0.1});
        load(folder / "plain", own.state(), {.world = world});
        const auto& state = own.zero->local_optimizer().state();
        size_t owned = 0;
        for (const auto& group : own.zero->param_groups()) {
          for (const auto& parameter : group.params()) {
            owned += own.zero->owns(parameter) ? 1 : 0;
            EXPECT_EQ(state.count(parameter.unsafeGetTensorImpl()) == 1,
                      own.zero->owns(parameter));
          }
        }
        EXPECT_EQ(state.size(), owned);
        EXPECT_TRUE(own.zero->state().empty());
      },
      kDeadline);
}

TEST(ZeroState, SaysItselfWhichRanksSaveTogether) {
  const TemporaryFolder folder;
  DividedAdamW plain({}, 7, {0.1});
  plain.step(0);
  save(folder / "plain", plain.state());
  run_ranks(
      3,
      [&](const World& world) {
        DividedAdamW own(world, 100, {0.1});
        load(folder / "plain", own.state());
        save(folder / "own", own.state());
      },
      kDeadline);
  EXPECT_EQ(difference(folder / "plain", folder / "own"), "");
}

// --- dicts in memory ---------------------------------------------------------

TEST(ZeroState, FullDictsAreThoseOfThePlainOptimizer) {
  DividedAdamW plain({}, 7, {0.1});
  for (const int step : {0, 1}) plain.step(step);
  const StateDict want =
      get_optimizer_state_dict(*plain.trained.block, *plain.optimizer);
  run_ranks(
      3,
      [&](const World& world) {
        DividedAdamW own(world, 7, {0.1});
        for (const int step : {0, 1}) own.step(step);
        const StateDictOptions options{.full_state_dict = true, .world = world};
        const StateDict got = get_optimizer_state_dict(*own.trained.block,
                                                       *own.optimizer, options);
        ASSERT_EQ(got.size(), want.size());
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_EQ(got[i].path, want[i].path);
          if (const auto* value = std::get_if<Value>(&want[i].leaf)) {
            EXPECT_EQ(std::get<Value>(got[i].leaf), *value);
            continue;
          }
          EXPECT_TRUE(torch::equal(std::get<StateTensor>(got[i].leaf).local,
                                   std::get<StateTensor>(want[i].leaf).local))
              << key_of(got[i].path);
        }
        DividedAdamW other(world, 7, {0.1});
        for (const int step : {5, 6}) other.step(step);
        other.take_values_of(own);
        (void)set_optimizer_state_dict(*other.trained.block, *other.optimizer,
                                       got, options);
        own.step(2);
        other.step(2);
        expect_equal(other, own, "from a full dict");
      },
      kDeadline);
}

// --- archives ----------------------------------------------------------------

std::string archive_of(const torch::optim::Optimizer& optimizer) {
  std::ostringstream stream;
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  archive.save_to(stream);
  return stream.str();
}

void load_archive(torch::optim::Optimizer& optimizer,
                  const std::string& bytes) {
  std::istringstream stream(bytes);
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  optimizer.load(archive);
}

template <class Wrapped, class Options>
void expect_same_archives(const Options& options) {
  using Own = Divided<Wrapped, Options>;
  Own plain({}, 7, options);
  for (const int step : {0, 1}) plain.step(step);
  const std::string of_plain = archive_of(*plain.optimizer);
  for (const int num_ranks : {1, 2, 4}) {
    run_ranks(
        num_ranks,
        [&](const World& world) {
          Own own(world, 7, options);
          Own wanted({}, 7, options);
          for (const int step : {0, 1}) {
            own.step(step);
            wanted.step(step);
          }
          const int to = num_ranks - 1;
          own.zero->consolidate_state_dict(to);
          if (world.rank() == to) {
            Own other({}, 7, options);  // not wrapped
            for (const int step : {5, 6}) other.step(step);
            other.take_values_of(own);
            load_archive(*other.optimizer, archive_of(*own.zero));
            Own same({}, 7, options);
            for (const int step : {0, 1}) same.step(step);
            other.step(2);
            same.step(2);
            expect_equal(other, same, "a plain one goes on");
          }
          Own later(world, 7, options);
          for (const int step : {5, 6}) later.step(step);
          later.take_values_of(own);
          load_archive(*later.zero, of_plain);
          later.step(2);
          wanted.step(2);
          expect_equal(later, wanted, "from the archive of a plain one");
        },
        kDeadline);
  }
}

TEST(ZeroState, ArchivesAreThoseOfTheWrappedOptimizer) {
  expect_same_archives<torch::optim::AdamW>(AdamWOptions(0).amsgrad(true));
  expect_same_archives<torch::optim::SGD>(SGDOptions(0).momentum(0.9));
  expect_same_archives<AdamW>(AdamWOptions(0));
}

TEST(ZeroState, IsThereOnlyWhereAndWhileItIsConsolidated) {
  run_ranks(
      2,
      [&](const World& world) {
        DividedAdamW own(world, 7, {0.1});
        const auto error = [&]() -> std::string {
          try {
            (void)archive_of(*own.zero);
          } catch (const InvalidState& error) {
            return error.what();
          }
          return "";
        };
        own.step(0);
        EXPECT_NE(error(), "");
        EXPECT_NE(
            error().find(str("consolidate_state_dict(", world.rank(), ")")),
            std::string::npos);
        own.zero->consolidate_state_dict(1);
        EXPECT_EQ(error().empty(), world.rank() == 1);
        own.zero->consolidate_state_dict();
        EXPECT_EQ(error().empty(), world.rank() == 0);
        own.step(1);
        EXPECT_NE(error(), "");
        EXPECT_THROW(own.zero->consolidate_state_dict(2), InvalidArgument);
        EXPECT_THROW(own.zero->consolidate_state_dict(world.rank()),
                     InvalidArgument);
      },
      kDeadline);
}

}  // namespace
}  // namespace tessera::checkpoint
