// set_state_dict: what was taken comes back, and bad dicts are refused.
#include <vector>

#include "tests/state/dicts.h"

namespace tessera {
namespace {

using testing::message_of;

// Sets `dicts` in a model of other values, and takes them from it.
void expect_set(const World& world, const StateDicts& dicts,
                const StateDict& model, const StateDict& optimizer,
                const StateDictOptions& options) {
  Trained other = trained_on(world, 50);
  other.optimizer->param_groups()[0].options().set_lr(0.125);
  const Optimizers optimizers = {other.optimizer.get()};
  const KeyReport report =
      set_state_dict(*other.block, optimizers, dicts, options);
  EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
  StateDictOptions get = options;
  get.broadcast_from_rank0 = false;
  const auto [got_model, got_optimizer] =
      get_state_dict(*other.block, optimizers, get);
  EXPECT_EQ(difference(got_model, model), "");
  EXPECT_EQ(difference(got_optimizer, optimizer), "");
}

TEST(SetStateDict, BringsBackWhatWasTakenInEveryForm) {
  for (const int ranks : {1, 2, 3}) {
    run_ranks(
        ranks,
        [&](const World& world) {
          Trained trained = trained_on(world, 7);
          const Optimizers optimizers = {trained.optimizer.get()};
          for (StateDictOptions options : {StateDictOptions(), full()}) {
            for (const bool flat : {false, true}) {
              options.flatten_optimizer_state_dict = flat;
              auto [model, optimizer] =
                  get_state_dict(*trained.block, optimizers, options);
              model = copy_of(model);
              optimizer = copy_of(optimizer);
              expect_set(world, {model, optimizer}, model, optimizer, options);
              if (!options.full_state_dict) continue;
              const bool first = world.rank() == 0;
              StateDictOptions broadcast = from_rank0();
              broadcast.flatten_optimizer_state_dict = flat;
              expect_set(world,
                         {first ? model : StateDict(),
                          first ? optimizer : StateDict()},
                         model, optimizer, broadcast);
            }
          }
        },
        kDeadline);
  }
}

TEST(SetStateDict, OfARankThatGivesOtherValuesThanRank0IsRefusedByName) {
  run_ranks(
      3,
      [&](const World& world) {
        Trained trained = trained_on(world, 7);
        const StateDict given = get_model_state_dict(*trained.block, full());
        const StateDict expected = copy_of(given);
        if (world.rank() == 2) {
          std::get<StateTensor>(given[1].leaf).local.view({-1})[0] += 1e-3;
        }
        const std::string message = message_of<InvalidArgument>(
            [&] { (void)set_model_state_dict(*trained.block, given, full()); });
        EXPECT_NE(message.find("'" + key_of(given[1].path) + "' on rank 2"),
                  std::string::npos)
            << message;
        EXPECT_NE(message.find("broadcast_from_rank0"), std::string::npos);
        (void)set_model_state_dict(*trained.block, given, from_rank0());
        EXPECT_EQ(
            difference(get_model_state_dict(*trained.block, full()), expected),
            "");
      },
      kDeadline);
}

TEST(SetStateDict, ConvertsToTheDtypeThatIsThere) {
  Trained trained({}, 7);
  NamedTensors halves;
  for (const auto& [name, tensor] :
       named_tensors(get_model_state_dict(*trained.block, full()))) {
    halves.emplace_back(name, tensor.to(torch::kHalf));
  }
  Trained other({}, 50);
  (void)set_model_state_dict(*other.block, dict_of(halves), full());
  EXPECT_EQ(other.block->up->weight.dtype(), torch::kFloat);
  EXPECT_TRUE(torch::equal(
      other.block->up->weight,
      trained.block->up->weight.to(torch::kHalf).to(torch::kFloat)));
}

// A dict that rank 0 got wrong; every rank must say so alike.
struct Wrong {
  const char* what;
  std::function<void(StateDict&)> spoil;
  StateDictOptions options;
  const char* message;
};

StateDict without(StateDict dict, const std::string& key) {
  std::erase_if(
      dict, [&](const StateEntry& entry) { return key_of(entry.path) == key; });
  return dict;
}

const std::vector<Wrong>& wrong_models() {
  static const std::vector<Wrong> cases = {
      {"missing", [](StateDict& d) { d = without(d, "up.bias"); }, from_rank0(),
       "lacks 'up.bias'"},
      {"unexpected",
       [](StateDict& d) {
         d.push_back({{"other"}, d[0].leaf});
       },
       from_rank0(), "has 'other'"},
      {"empty", [](StateDict& d) { d.clear(); }, full(), "lacks 'down.bias'"},
      {"size",
       [](StateDict& d) {
         d[0].leaf = state_tensor(torch::zeros({2, 2}));
       },
       from_rank0(), "has size [2, 2] in the dict; expected [1]"},
      {"value", [](StateDict& d) { d[0].leaf = Value(3); }, from_rank0(),
       "'gain' is a tensor here and a value"},
      {"twice", [](StateDict& d) { d.push_back(d[0]); }, from_rank0(),
       "'gain' is there twice"},
      {"whole tensors", [](StateDict&) {}, {}, "full_state_dict"},
      {"options",
       [](StateDict&) {},
       {.broadcast_from_rank0 = true},
       "broadcast_from_rank0 needs full_state_dict"},
  };
  return cases;
}

TEST(SetStateDict, RefusesAWrongModelOnEveryRankAlikeAndChangesNothing) {
  for (const int ranks : {2, 3}) {
    for (const Wrong& wrong : wrong_models()) {
      std::vector<std::string> errors(static_cast<size_t>(ranks));
      run_ranks(
          ranks,
          [&](const World& world) {
            Trained trained = trained_on(world, 7);
            StateDict given = get_model_state_dict(*trained.block, full());
            const StateDict before = copy_of(given);
            for (StateEntry& entry : given) {
              std::get<StateTensor>(entry.leaf).local.fill_(3);
            }
            // Rank 0 is wrong; with no full dict, or an empty one, all are.
            if (world.rank() == 0 || !wrong.options.broadcast_from_rank0) {
              wrong.spoil(given);
            }
            errors[static_cast<size_t>(world.rank())] =
                message_of<InvalidArgument>([&] {
                  (void)set_model_state_dict(*trained.block, given,
                                             wrong.options);
                });
            EXPECT_EQ(difference(get_model_state_dict(*trained.block, full()),
                                 before),
                      "")
                << wrong.what;
          },
          kDeadline);
      for (const std::string& error : errors) {
        EXPECT_EQ(error, errors[0]) << wrong.what;
        EXPECT_TRUE(contains(error, wrong.message)) << error;
      }
    }
  }
}

TEST(SetStateDict, RefusesRanksThatGiveDifferentKeys) {
  std::vector<std::string> errors(2);
  run_ranks(
      2,
      [&](const World& world) {
        Trained trained = trained_on(world, 7);
        StateDict given = get_model_state_dict(*trained.block, full());
        if (world.rank() == 1) given = without(given, "up.bias");
        errors[static_cast<size_t>(world.rank())] = message_of<InvalidArgument>(
            [&] { (void)set_model_state_dict(*trained.block, given, full()); });
      },
      kDeadline);
  EXPECT_EQ(errors[0], errors[1]);
  EXPECT_TRUE(contains(errors[0], "rank 1 lacks 'up.bias'")) << errors[0];
}

TEST(SetStateDict, RefusesAWrongOptimizerAndLeavesItsOptions) {
  const std::vector<Wrong> cases = {
      {"missing", [](StateDict& d) { d = without(d, "state.up.bias.exp_avg"); },
       full(), "lacks 'state.up.bias.exp_avg'"},
      {"unexpected",
       [](StateDict& d) {
         d.push_back({{"state", "other", "exp_avg"}, d[0].leaf});
       },
       full(), "has 'state.other.exp_avg'"},
      {"no group",
       [](StateDict& d) {
         std::erase_if(d, [](const StateEntry& entry) {
           return key_of(entry.path).starts_with("param_groups.1");
         });
       },
       full(), "lacks 'param_groups of up.bias'"},
  };
  for (const Wrong& wrong : cases) {
    run_ranks(
        2,
        [&](const World& world) {
          Trained trained = trained_on(world, 7);
          StateDict given = get_optimizer_state_dict(
              *trained.block, *trained.optimizer, full());
          wrong.spoil(given);
          auto& options = trained.optimizer->param_groups()[0].options();
          options.set_lr(0.75);
          const StateDict before = copy_of(get_optimizer_state_dict(
              *trained.block, *trained.optimizer, full()));
          const std::string error = message_of<InvalidArgument>([&] {
            (void)set_optimizer_state_dict(*trained.block, *trained.optimizer,
                                           given, wrong.options);
          });
          EXPECT_TRUE(contains(error, wrong.message)) << error;
          EXPECT_EQ(difference(get_optimizer_state_dict(
                                   *trained.block, *trained.optimizer, full()),
                               before),
                    "");
        },
        kDeadline);
  }
}

TEST(SetStateDict, NotStrictReportsAndSetsTheRest) {
  run_ranks(
      2,
      [&](const World& world) {
        Trained trained = trained_on(world, 7);
        StateDict model =
            without(get_model_state_dict(*trained.block, full()), "up.bias");
        model.push_back({{"other"}, model[0].leaf});
        StateDictOptions options = full();
        options.strict = false;
        Trained other = trained_on(world, 50);
        const KeyReport report =
            set_model_state_dict(*other.block, model, options);
        EXPECT_EQ(report.missing, std::vector<std::string>{"up.bias"});
        EXPECT_EQ(report.unexpected, std::vector<std::string>{"other"});
        const StateDict optimizer =
            without(get_optimizer_state_dict(*trained.block, *trained.optimizer,
                                             full()),
                    "state.up.bias.exp_avg");
        const KeyReport second = set_optimizer_state_dict(
            *other.block, *other.optimizer, optimizer, options);
        EXPECT_EQ(second.missing,
                  std::vector<std::string>{"state.up.bias.exp_avg"});
        other.step(1);
      },
      kDeadline);
}

}  // namespace
}  // namespace tessera
