// Mixed precision: inputs cast at the operators that read parameters, or at the
// module's boundary by `call`.
#include "tessera/shard/call.h"
#include "tests/support/net.h"

namespace tessera::test {
namespace {

// Float by default, as mixed precision is used.
class Casts : public testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }
};

FullyShardOptions bfloat16_options(const World& world) {
  FullyShardOptions options = options_for(init_device_mesh(world));
  options.mp_policy.param_dtype = torch::kBFloat16;
  options.mp_policy.reduce_dtype = torch::kFloat;
  return options;
}

Tensor float_noise(at::IntArrayRef sizes) {
  return noise(3, sizes).to(torch::kFloat);
}

// One sharded layer on two ranks, called without `call` on a float input.
void expect_cast(const Make& make,
                 const std::function<Tensor(nn::Module&)>& run,
                 const char* what) {
  on_ranks(2, [&](const World& world) {
    Model layer = build(make);
    fully_shard(*layer, bfloat16_options(world));
    const Tensor output = run(*layer);
    EXPECT_EQ(output.scalar_type(), torch::kBFloat16) << what;
    output.to(torch::kFloat).pow(2).sum().backward();
    for (const auto& item : layer->named_parameters()) {
      ASSERT_TRUE(item.value().grad().defined()) << what << item.key();
      EXPECT_EQ(item.value().grad().scalar_type(), torch::kFloat) << what;
    }
  });
}

template <class Layer>
std::function<Tensor(nn::Module&)> forward_of(std::vector<int64_t> sizes) {
  return [sizes](nn::Module& module) {
    const Tensor x = float_noise(sizes).requires_grad_();
    const Tensor y = dynamic_cast<Layer&>(module).forward(x);
    return y;
  };
}

TEST_F(Casts, LayersComputeInTheParametersDtypeFromFloatInputs) {
  expect_cast([] { return nn::Linear(6, 4).ptr(); },
              forward_of<nn::LinearImpl>({5, 6}), "linear, 2-D");
  expect_cast([] { return nn::Linear(6, 4).ptr(); },
              forward_of<nn::LinearImpl>({2, 5, 6}), "linear, 3-D");
  expect_cast(
      [] { return nn::Linear(nn::LinearOptions(6, 4).bias(false)).ptr(); },
      forward_of<nn::LinearImpl>({5, 6}), "linear without bias");
  expect_cast([] { return nn::Conv1d(2, 4, 3).ptr(); },
              forward_of<nn::Conv1dImpl>({2, 2, 7}), "conv1d");
  expect_cast([] { return nn::Conv2d(2, 4, 3).ptr(); },
              forward_of<nn::Conv2dImpl>({2, 2, 7, 7}), "conv2d");
  expect_cast([] { return nn::ConvTranspose1d(2, 4, 3).ptr(); },
              forward_of<nn::ConvTranspose1dImpl>({2, 2, 7}),
              "conv_transpose1d");
  expect_cast([] { return nn::LayerNorm(nn::LayerNormOptions({6})).ptr(); },
              forward_of<nn::LayerNormImpl>({5, 6}), "layer_norm");
  expect_cast([] { return nn::GroupNorm(nn::GroupNormOptions(2, 6)).ptr(); },
              forward_of<nn::GroupNormImpl>({5, 6, 3}), "group_norm");
}

// A cast is made once per tensor and unit, but not for one that wants a
// gradient only since.
TEST_F(Casts, AnInputThatWantsAGradientLaterGetsIt) {
  on_ranks(2, [](const World& world) {
    Model layer = build([] { return nn::Linear(6, 4).ptr(); });
    fully_shard(*layer, bfloat16_options(world));
    auto& linear = dynamic_cast<nn::LinearImpl&>(*layer);
    const Tensor x = float_noise({5, 6});
    const Tensor before = linear.forward(x);
    x.set_requires_grad(true);
    (before.sum() + linear.forward(x).sum()).backward();
    ASSERT_TRUE(x.grad().defined());
    EXPECT_GT(x.grad().abs().max().item<float>(), 0);
  });
}

TEST_F(Casts, TheInputsGradientComesBackInItsOwnDtype) {
  on_ranks(2, [](const World& world) {
    Model layer = build([] { return nn::Linear(6, 4).ptr(); });
    fully_shard(*layer, bfloat16_options(world));
    const Tensor x = float_noise({5, 6}).requires_grad_();
    dynamic_cast<nn::LinearImpl&>(*layer).forward(x).sum().backward();
    EXPECT_EQ(x.grad().scalar_type(), torch::kFloat);
  });
}

struct ThreeImpl : nn::Module {
  nn::Linear q{nullptr}, k{nullptr}, v{nullptr};
  Tensor scale;
  ThreeImpl() {
    const auto options = nn::LinearOptions(6, 6).bias(false);
    q = register_module("q", nn::Linear(options));
    k = register_module("k", nn::Linear(options));
    v = register_module("v", nn::Linear(options));
    scale = register_parameter("scale", torch::ones({6}));
  }
};

TEST_F(Casts, OneInputIsCastOnceForAllItsReaders) {
  on_ranks(2, [](const World& world) {
    Model model = build([] { return std::make_shared<ThreeImpl>(); });
    fully_shard(*model, bfloat16_options(world));
    auto& three = dynamic_cast<ThreeImpl&>(*model);
    const Tensor x = float_noise({5, 6}).requires_grad_();
    const auto input_node = [](const Tensor& y) {
      return y.grad_fn()->next_edge(0).function.get();
    };
    const Tensor q = three.q(x);
    EXPECT_NE(input_node(q), x.grad_fn().get());
    EXPECT_EQ(input_node(three.k(x)), input_node(q));
    EXPECT_EQ(input_node(three.v(x)), input_node(q));
    const Tensor other = float_noise({5, 6}).requires_grad_();
    EXPECT_NE(input_node(three.v(other)), input_node(q));
  });
}

TEST_F(Casts, AnInputWrittenInBetweenIsCastAgain) {
  on_ranks(2, [](const World& world) {
    Model model = build([] { return std::make_shared<ThreeImpl>(); });
    fully_shard(*model, bfloat16_options(world));
    auto& three = dynamic_cast<ThreeImpl&>(*model);
    torch::NoGradGuard no_grad;
    Tensor x = float_noise({5, 6});
    const Tensor first = three.q(x);
    x.zero_();
    EXPECT_TRUE(three.q(x).eq(0).all().item<bool>());
    EXPECT_FALSE(first.eq(0).all().item<bool>());
  });
}

TEST_F(Casts, ElementwiseOperatorsPromoteAsUsual) {
  on_ranks(2, [](const World& world) {
    Model model = build([] { return std::make_shared<ThreeImpl>(); });
    fully_shard(*model, bfloat16_options(world));
    auto& three = dynamic_cast<ThreeImpl&>(*model);
    EXPECT_EQ((float_noise({5, 6}) * three.scale).scalar_type(), torch::kFloat);
    EXPECT_EQ((three.scale + 1).scalar_type(), torch::kBFloat16);
  });
}

TEST_F(Casts, NothingIsCastWhenItIsSwitchedOff) {
  on_ranks(2, [](const World& world) {
    Model layer = build([] { return nn::Linear(6, 4).ptr(); });
    FullyShardOptions options = bfloat16_options(world);
    options.mp_policy.cast_forward_inputs = CastInputs::off;
    fully_shard(*layer, options);
    auto& linear = dynamic_cast<nn::LinearImpl&>(*layer);
    EXPECT_NE(message_of([&] { linear.forward(float_noise({5, 6})); }), "");
    EXPECT_EQ(
        linear.forward(float_noise({5, 6}).to(torch::kBFloat16)).scalar_type(),
        torch::kBFloat16);
  });
}

// call ------------------------------------------------------------------------

struct PairOutImpl : nn::Module {
  nn::Linear f{nullptr};
  PairOutImpl() { f = register_module("f", nn::Linear(6, 4)); }
  std::tuple<Tensor, std::vector<Tensor>> forward(const Tensor& x,
                                                  const Tensor& index) {
    seen = x.scalar_type();
    return {f(x), {f(x), index}};
  }
  c10::ScalarType seen = torch::kLong;
};

TEST_F(Casts, CallCastsInputsAndOutputsAtTheBoundary) {
  on_ranks(2, [](const World& world) {
    Model model = build([] { return std::make_shared<PairOutImpl>(); });
    FullyShardOptions options = bfloat16_options(world);
    options.mp_policy.output_dtype = torch::kDouble;
    options.reshard_after_forward = Reshard::always;
    fully_shard(*model, options);
    auto pair = std::dynamic_pointer_cast<PairOutImpl>(model);
    const auto [y, more] = call(pair, float_noise({5, 6}), torch::arange(3));
    EXPECT_EQ(pair->seen, torch::kBFloat16);
    EXPECT_EQ(y.scalar_type(), torch::kDouble);
    EXPECT_EQ(more[0].scalar_type(), torch::kDouble);
    EXPECT_EQ(more[1].scalar_type(), torch::kLong);
    expect_nothing_gathered(*model, "after call");
    y.sum().backward();
    EXPECT_TRUE(model->parameters()[0].grad().defined());
  });
}

// FSDP2 looks into every container of inputs and outputs.
struct NestedImpl : nn::Module {
  using Item = std::pair<Tensor, int64_t>;
  using Items = std::map<std::string, std::vector<Item>>;
  nn::Linear f{nullptr};
  std::vector<c10::ScalarType> seen;

  NestedImpl() { f = register_module("f", nn::Linear(6, 4)); }
  std::tuple<std::optional<Tensor>, Items> forward(
      const std::optional<Tensor>& mask, const Items& items) {
    const Item& item = items.at("x").at(0);
    seen = {mask->scalar_type(), item.first.scalar_type()};
    return {f(item.first) * *mask, {{"y", {{f(item.first), item.second}}}}};
  }
};

TEST_F(Casts, CallFindsTensorsInNestedContainers) {
  on_ranks(2, [](const World& world) {
    Model model = build([] { return std::make_shared<NestedImpl>(); });
    FullyShardOptions options = bfloat16_options(world);
    options.mp_policy.output_dtype = torch::kFloat;
    fully_shard(*model, options);
    auto nested = std::dynamic_pointer_cast<NestedImpl>(model);
    const NestedImpl::Items items = {{"x", {{float_noise({5, 6}), 7}}}};
    const auto [masked, more] =
        call(nested, std::optional<Tensor>(float_noise({5, 4})), items);
    EXPECT_EQ(nested->seen, std::vector(2, torch::kBFloat16));
    EXPECT_EQ(masked->scalar_type(), torch::kFloat);
    EXPECT_EQ(more.at("y").at(0).first.scalar_type(), torch::kFloat);
    EXPECT_EQ(more.at("y").at(0).second, 7);
    EXPECT_EQ(items.at("x").at(0).first.scalar_type(), torch::kFloat)
        << "the caller's own";
  });
}

TEST_F(Casts, AUnitWithAnOutputDtypeMustBeCalledThroughCall) {
  on_ranks(2, [](const World& world) {
    Model layer = build([] { return nn::Linear(6, 4).ptr(); });
    FullyShardOptions options = bfloat16_options(world);
    options.mp_policy.output_dtype = torch::kFloat;
    fully_shard(*layer, options);
    auto& linear = dynamic_cast<nn::LinearImpl&>(*layer);
    const std::string message = message_of([&] {
      linear.forward(float_noise({5, 6}));
    });
    EXPECT_TRUE(says(message, "output_dtype"));
    EXPECT_TRUE(says(message, "call(module"));
    EXPECT_EQ(call(&linear, float_noise({5, 6})).scalar_type(), torch::kFloat);
  });
}

TEST_F(Casts, CallOfAPlainModuleJustCallsIt) {
  nn::Linear layer(6, 4);
  const Tensor x = float_noise({5, 6});
  EXPECT_TRUE(call(layer, x).equal(layer(x)));
}

}  // namespace
}  // namespace tessera::test
