// Ranks that do not do the same: found out, and told by name.
#include <sstream>

#include "tests/support/net.h"

namespace tessera::test {
namespace {

using Ranks = DoubleByDefault;

// Two blocks of one size, so that collectives of different units pair up.
struct TwinsImpl : nn::Module {
  Block a{nullptr}, b{nullptr};
  TwinsImpl() {
    a = register_module("a", Block(6, 6));
    b = register_module("b", Block(6, 6));
  }
  Tensor forward(const Tensor& x) { return b(a(x)); }
};

Model make_twins() { return std::make_shared<TwinsImpl>(); }

TwinsImpl& as_twins(nn::Module& module) {
  return dynamic_cast<TwinsImpl&>(module);
}

// The CommError by which a run on two ranks ends.
std::string comm_error_of(
    const std::function<void(const World&, TwinsImpl&)>& run) {
  try {
    run_ranks(
        2,
        [&](const World& world) {
          Model model = build_sharded(world, make_twins, kUnits);
          run(world, as_twins(*model));
        },
        std::chrono::seconds(3));
  } catch (const CommError& error) {
    return error.what();
  }
  return "";
}

TEST_F(Ranks, AMemberPrintedOnOneRankIsFoundInTraining) {
  const std::string message = comm_error_of([](const World& world, auto& net) {
    if (world.rank() == 0) {
      std::ostringstream out;
      out << net.b->f->weight;
    }
    for (int step = 0; step < 2; ++step) {
      square_loss(net.forward(input(world.rank(), step))).backward();
    }
  });
  EXPECT_TRUE(says(message, "unit 'a'"));
}

TEST_F(Ranks, AMemberReadOnOneRankInEvaluationIsFound) {
  const std::string message = comm_error_of([](const World& world, auto& net) {
    torch::NoGradGuard no_grad;
    if (world.rank() == 0) (void)net.b->f->weight.norm();
    net.forward(input(world.rank(), 0));
  });
  EXPECT_TRUE(says(message, "unit 'b'"));
}

// As many reads on each rank, of other units: sizes and numbers match, and the
// ranks mix blocks without any error of the transport.
TEST_F(Ranks, DifferentReadsOfOneNumberAreFoundInTraining) {
  const std::string message = comm_error_of([](const World& world, auto& net) {
    (void)(world.rank() == 0 ? net.a : net.b)->f->weight.norm();
    reshard(*net.a);
    reshard(*net.b);
    square_loss(net.forward(input(world.rank(), 0))).backward();
  });
  EXPECT_TRUE(says(message, "Out of step: ranks 0, 1"));
  EXPECT_TRUE(says(message, "aten::norm"));
}

TEST_F(Ranks, DifferentReadsOfOneNumberAreFoundInEvaluation) {
  const std::string message = comm_error_of([](const World& world, auto& net) {
    torch::NoGradGuard no_grad;
    (void)(world.rank() == 0 ? net.a : net.b)->f->weight.norm();
    reshard(*net.a);
    reshard(*net.b);
    for (int i = 0; i < 200; ++i) net.forward(input(world.rank(), 0));
  });
  EXPECT_TRUE(says(message, "Out of step: ranks 0, 1"));
}

TEST_F(Ranks, AUnitSkippedOnOneRankIsFound) {
  const std::string message = comm_error_of([](const World& world, auto& net) {
    Tensor h = net.a(input(world.rank(), 0));
    if (world.rank() == 0) h = net.b(h);
    square_loss(h).backward();
  });
  EXPECT_NE(message, "");
}

TEST_F(Ranks, AParameterReadOnOneRankOutsideItsUnitIsFound) {
  const std::string message = comm_error_of([](const World& world, auto& net) {
    Tensor loss = square_loss(net.forward(input(world.rank(), 0)));
    if (world.rank() == 0) loss = loss + (net.a->extra * net.a->gain).sum();
    loss.backward();
  });
  EXPECT_NE(message, "");
}

// Unequal starts --------------------------------------------------------------

struct StartImpl : nn::Module {
  Tensor first, second;
  StartImpl(const std::string& name, int64_t size, double value, bool trains) {
    first = register_parameter("first", torch::ones({4}));
    second = register_parameter(name, torch::full({size}, value), trains);
  }
};

// What fully_shard says when rank 1 starts from another model.
void expect_start_error(const Make& on_rank_0, const Make& on_rank_1,
                        const std::vector<std::string>& parts) {
  on_ranks(2, [&](const World& world) {
    Model model = world.rank() == 0 ? on_rank_0() : on_rank_1();
    const auto options = options_for(init_device_mesh(world));
    const std::string message =
        message_of([&] { fully_shard(*model, options); });
    EXPECT_TRUE(says(message, "start from different parameters"));
    for (const std::string& part : parts) EXPECT_TRUE(says(message, part));
    EXPECT_FALSE(is_fully_sharded(*model))
        << "a call that fails changes nothing";
  });
}

Make start(std::string name, int64_t size, double value, bool trains) {
  return [=] { return std::make_shared<StartImpl>(name, size, value, trains); };
}

TEST_F(Ranks, UnequalValuesAreNamed) {
  expect_start_error(start("second", 5, 1, true), start("second", 5, 2, true),
                     {"second", "values", "rank 1"});
}

TEST_F(Ranks, UnequalShapesAreNamed) {
  expect_start_error(start("second", 5, 1, true), start("second", 6, 1, true),
                     {"second [5]", "second [6]", "rank 1"});
}

TEST_F(Ranks, UnequalFlagsAreNamed) {
  expect_start_error(start("second", 5, 1, true), start("second", 5, 1, false),
                     {"second", "frozen", "rank 1"});
}

TEST_F(Ranks, UnequalNamesAreNamed) {
  expect_start_error(start("second", 5, 1, true), start("other", 5, 1, true),
                     {"second", "other", "rank 1"});
}

TEST_F(Ranks, UnequalValuesPassWithTheCheckOff) {
  on_ranks(2, [](const World& world) {
    Model model = start("second", 5, world.rank(), true)();
    FullyShardOptions options = options_for(init_device_mesh(world));
    options.start_check = StartCheck::off;
    fully_shard(*model, options);
    EXPECT_TRUE(is_fully_sharded(*model));
  });
}

}  // namespace
}  // namespace tessera::test
