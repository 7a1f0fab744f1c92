// What people do with modules around a training loop.
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <torch/script.h>

#include <atomic>
#include <thread>

#include "tests/support/net.h"

namespace tessera::test {
namespace {

using Modules = DoubleByDefault;

// fully_shard -----------------------------------------------------------------

TEST_F(Modules, ASecondCallOnOneModuleIsAnError) {
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    const auto options = options_for(init_device_mesh(world));
    EXPECT_TRUE(says(message_of([&] { fully_shard(*model, options); }),
                     "was given to fully_shard before"));
    plain_loss(*model, {world.rank(), 0, 1}).backward();
  });
}

TEST_F(Modules, ShardingInsideInferenceModeIsAnError) {
  on_ranks(2, [](const World& world) {
    Model model = build(make_net);
    const auto options = options_for(init_device_mesh(world));
    {
      c10::InferenceMode inference;
      EXPECT_TRUE(says(message_of([&] { fully_shard(*model, options); }),
                       "InferenceMode"));
    }
    fully_shard(*model, options);
    plain_loss(*model, {world.rank(), 0, 1}).backward();
  });
}

void expect_refused(const Make& make, const std::vector<std::string>& parts) {
  on_ranks(2, [&](const World& world) {
    Model model = build(make);
    const auto options = options_for(init_device_mesh(world));
    const std::string message =
        message_of([&] { fully_shard(*model, options); });
    for (const std::string& part : parts) EXPECT_TRUE(says(message, part));
    EXPECT_FALSE(is_fully_sharded(*model));
  });
}

TEST_F(Modules, ParameterListsAndDictsAreRefused) {
  struct Lists : nn::Module {
    nn::ParameterList weights;
    Lists() {
      weights->append(torch::ones({3}));
      register_module("weights", weights);
    }
  };
  struct Dicts : nn::Module {
    nn::ParameterDict named;
    Dicts() {
      named->insert("one", torch::ones({3}));
      register_module("named", named);
    }
  };
  expect_refused([] { return std::make_shared<Lists>(); },
                 {"'weights'", "ParameterList"});
  expect_refused([] { return std::make_shared<Dicts>(); },
                 {"'named'", "ParameterDict"});
}

TEST_F(Modules, AnEmbeddingWithMaxNormIsRefused) {
  expect_refused(
      []() -> Model {
        return nn::Embedding(nn::EmbeddingOptions(5, 3).max_norm(1)).ptr();
      },
      {"max_norm"});
}

TEST_F(Modules, ParametersWithoutDimsAndIntegersAreRefused) {
  struct Holder : nn::Module {
    Tensor odd;
    explicit Holder(const Tensor& tensor) {
      odd = register_parameter("odd", tensor, tensor.is_floating_point());
    }
  };
  expect_refused([] { return std::make_shared<Holder>(torch::ones({})); },
                 {"'odd'", "no dim"});
  expect_refused(
      [] { return std::make_shared<Holder>(torch::ones({3}, torch::kLong)); },
      {"'odd'", "long"});
  expect_refused(
      [] {
        return std::make_shared<Holder>(torch::ones({3, 4}).t());
      },
      {"'odd'", "not contiguous"});
}

// Before sharding -------------------------------------------------------------

TEST_F(Modules, ToAndEvalBeforeSharding) {
  expect_agreement(
      [] {
        Model model = make_net();
        model->to(torch::kFloat);
        model->to(torch::kDouble);
        model->eval();
        return model;
      },
      plain_loss, {.units = kUnits});
}

struct TiedImpl2 : nn::Module {
  nn::Embedding e{nullptr};
  nn::Linear h{nullptr};
  TiedImpl2() {
    e = register_module("e", nn::Embedding(7, 4));
    h = register_module("h", nn::Linear(nn::LinearOptions(4, 7).bias(false)));
    h->weight = e->weight;
  }
};

Tensor tied_loss(nn::Module& m, const Turn& turn) {
  auto& net = dynamic_cast<TiedImpl2&>(m);
  const Tensor ids =
      (torch::arange(6) * 3 + turn.rank + turn.step).remainder(7).view({3, 2});
  return square_loss(net.h(net.e(ids)));
}

Model make_tied() { return std::make_shared<TiedImpl2>(); }

TEST_F(Modules, ATieByMemberAssignmentBeforeSharding) {
  expect_agreement(make_tied, tied_loss);
  expect_agreement(make_tied, tied_loss, {.units = {"e"}});
}

// The head's own registered weight, which no member holds, makes a unit that
// nothing can read.
TEST_F(Modules, ATieByMemberAssignmentBetweenTwoUnits) {
  const Tensors want = gradients_of_one_process(2, make_tied, tied_loss);
  on_ranks(2, [&](const World& world) {
    Model model = build_sharded(world, make_tied, {"e", "h"});
    tied_loss(*model, {world.rank(), 0, 1}).backward();
    expect_close(full_gradients(world, *model), want, "gradient");
  });
}

// After sharding --------------------------------------------------------------

template <class Layer>
void reset_parameters_of(Layer& layer) {
  if constexpr (requires { layer->reset_parameters(); }) {
    layer->reset_parameters();
  } else if constexpr (requires { layer->_reset_parameters(); }) {
    layer->_reset_parameters();
  } else {
    layer->reset();
  }
}

// Outside of any scope they walk parameters(), or write members.
template <class Layer>
void expect_reset_refused(Layer layer) {
  on_ranks(1, [&](const World& world) {
    fully_shard(*layer, options_for(init_device_mesh(world)));
    EXPECT_NE(message_of([&] { reset_parameters_of(layer); }), "")
        << layer->name();
    FullParameters full(*layer);
    EXPECT_EQ(message_of([&] { reset_parameters_of(layer); }), "")
        << layer->name();
  });
}

TEST_F(Modules, ResetOfAShardedLayerIsRefusedAndWorksInFullParameters) {
  expect_reset_refused(nn::Linear(3, 4));
  expect_reset_refused(nn::Bilinear(3, 4, 5));
  expect_reset_refused(nn::Embedding(3, 4));
  expect_reset_refused(nn::EmbeddingBag(3, 4));
  expect_reset_refused(nn::Conv2d(2, 2, 3));
  expect_reset_refused(nn::ConvTranspose2d(2, 2, 3));
  expect_reset_refused(nn::BatchNorm2d(3));
  expect_reset_refused(nn::LayerNorm(nn::LayerNormOptions({3})));
  expect_reset_refused(nn::GroupNorm(nn::GroupNormOptions(1, 2)));
  expect_reset_refused(
      nn::InstanceNorm2d(nn::InstanceNorm2dOptions(3).affine(true)));
  expect_reset_refused(nn::LSTM(3, 4));
  expect_reset_refused(nn::GRU(3, 4));
  expect_reset_refused(nn::RNN(3, 4));
  expect_reset_refused(nn::LSTMCell(3, 4));
  expect_reset_refused(nn::GRUCell(3, 4));
  expect_reset_refused(nn::RNNCell(3, 4));
  expect_reset_refused(nn::MultiheadAttention(8, 2));
  expect_reset_refused(nn::TransformerEncoderLayer(8, 2));
}

TEST_F(Modules, LstmTrainsAfterTrainEvalAndFlatten) {
  on_ranks(2, [](const World& world) {
    Model model = build([] { return nn::LSTM(4, 5).ptr(); });
    fully_shard(*model, options_for(init_device_mesh(world)));
    auto& lstm = dynamic_cast<nn::LSTMImpl&>(*model);
    lstm.eval();
    lstm.train();
    lstm.flatten_parameters();
    const auto [y, state] = lstm.forward(noise(1, {3, 4, 4}));
    y.sum().backward();
    EXPECT_EQ(full_gradients(world, *model).size(), 4u);
  });
}

TEST_F(Modules, LstmMovedAfterShardingIsRefusedByName) {
  on_ranks(2, [](const World& world) {
    Model model = build([] { return nn::LSTM(4, 5).ptr(); });
    fully_shard(*model, options_for(init_device_mesh(world)));
    auto& lstm = dynamic_cast<nn::LSTMImpl&>(*model);
    EXPECT_TRUE(says(message_of([&] {
                       lstm.to(torch::kCPU);
                       lstm.forward(noise(1, {3, 4, 4}));
                     }),
                     "the shard of parameter 'weight_ih_l0'"));
  });
}

TEST_F(Modules, AMemberReplacedByAnotherHandleActsAsInPlainLibTorch) {
  expect_agreement(make_net,
                   [](nn::Module& m, const Turn& turn) {
                     as_net(m).a->f->weight = torch::full({8, 6}, 0.1);
                     return plain_loss(m, turn);
                   },
                   {.units = kUnits});
}

TEST_F(Modules, WeightsAreCopiedToAPlainModule) {
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    nn::Linear plain(6, 8);
    torch::NoGradGuard no_grad;
    plain->weight.copy_(as_net(*model).a->f->weight);
    expect_close(plain->weight, full_values(*model)["a.f.weight"], "copy");
    EXPECT_NE(message_of([&] {
                plain->weight.copy_(model->named_parameters()["a.f.weight"]);
              }),
              "")
        << "a shard has another shape";
  });
}

// `undefined` would be taken for "no gradient": an optimizer over members would
// leave them out, and train nothing.
TEST_F(Modules, GradOfAMemberIsAnErrorThatNamesTheParameter) {
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    const Tensor& member = as_net(*model).a->f->weight;
    for (const char* when : {"before", "after"}) {
      const auto message = message_of([&] { (void)member.grad(); });
      EXPECT_TRUE(says(message, "'a.f.weight'")) << when;
      EXPECT_TRUE(says(message, "parameters()")) << when;
      plain_loss(*model, {world.rank(), 0, 1}).backward();
    }
    EXPECT_TRUE(member.is_leaf());
    EXPECT_TRUE(member.requires_grad());
    model->zero_grad();
    EXPECT_FALSE(model->parameters()[0].grad().defined());
  });
}

// Around the model ------------------------------------------------------------

TEST_F(Modules, ADataLoaderThreadComputesMeanwhile) {
  expect_agreement(make_net,
                   [](nn::Module& m, const Turn& turn) {
                     std::atomic<bool> stop = false;
                     std::thread loader([&] {
                       while (!stop)
                         torch::ones({16, 16}).mm(torch::ones({16, 16})).sum();
                     });
                     (plain_loss(m, turn) * turn.share).backward();
                     stop = true;
                     loader.join();
                     return plain_loss(m, turn);
                   },
                   {.units = kUnits});
}

TEST_F(Modules, ParallelForReadsAGatheredWeightThroughItsPointer) {
  expect_agreement(make_net,
                   [](nn::Module& m, const Turn& turn) {
                     auto& net = as_net(m);
                     const Tensor loss = plain_loss(m, turn);
                     Tensor column = torch::zeros({8});
                     {
                       torch::NoGradGuard no_grad;
                       const Tensor w = net.b->f->weight.cpu();
                       const double* from = w.data_ptr<double>();
                       double* to = column.data_ptr<double>();
                       at::parallel_for(0, 8, 1,
                                        [&](int64_t begin, int64_t end) {
                                          for (int64_t i = begin; i < end; ++i)
                                            to[i] = from[i * 8];
                                        });
                     }
                     return loss + column.sum() * net.b->gain.sum();
                   },
                   {.units = kUnits});
}

TEST_F(Modules, ATorchScriptFunctionTakesAWeight) {
  const auto script = torch::jit::compile(R"(
def f(x, w):
    y = torch.tanh(x.mm(w.t()))
    return y * w.sum() + torch.relu(y) * 2
)");
  expect_agreement(
      make_net,
      [&](nn::Module& m, const Turn& turn) {
        auto& net = as_net(m);
        const Tensor y =
            script->run_method("f", input(turn), net.a->f->weight).toTensor();
        return plain_loss(m, turn) + square_loss(net.b(y));
      },
      {.units = kUnits, .steps = 4});
}

// Autocast --------------------------------------------------------------------

// To bfloat16, while it lives.
class Autocast {
 public:
  Autocast() {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
};

// 2e-2: arithmetic in bfloat16.
TEST_F(Modules, AutocastTrainsAsOneProcess) {
  torch::set_default_dtype(c10::scalarTypeToTypeMeta(torch::kFloat));
  const Make make = [] {
    return nn::Sequential(nn::Conv1d(3, 4, 3), nn::Flatten(), nn::Linear(20, 2))
        .ptr();
  };
  expect_agreement(
      make,
      [](nn::Module& m, const Turn& turn) {
        const Tensor x =
            noise(turn.rank + turn.step, {4, 3, 7}).to(torch::kFloat);
        const Tensor y = [&] {
          const Autocast autocast;
          return dynamic_cast<nn::SequentialImpl&>(m).forward(x);
        }();
        return square_loss(y.to(torch::kFloat));
      },
      {.units = {"0", "2"}, .steps = 3, .tolerance = 2e-2});
}

// A copy that is kept shows in what a changed weight computes.
TEST_F(Modules, AutocastKeepsNoCopiesOfWeights) {
  torch::set_default_dtype(c10::scalarTypeToTypeMeta(torch::kFloat));
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    const Tensor x = input(world.rank(), 0).to(torch::kFloat);
    const auto compute = [&] { return as_net(*model).forward(x); };
    const Autocast autocast;
    const Tensor before = compute();
    {
      torch::NoGradGuard no_grad;
      for (Tensor& p : model->parameters()) p.mul_(2);
    }
    const Tensor after = compute();
    EXPECT_FALSE(torch::equal(after, before));
    at::autocast::set_autocast_cache_enabled(false);  // on this thread
    EXPECT_TRUE(torch::equal(after, compute()));
    at::autocast::set_autocast_cache_enabled(true);
  });
}

}  // namespace
}  // namespace tessera::test
