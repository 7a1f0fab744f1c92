#include "tessera/module/initializers.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera {
namespace {

namespace nn = torch::nn;

using Factory = std::function<std::shared_ptr<nn::Module>()>;

struct Case {
  std::string name;
  Factory make;
};

template <class Holder, class... Args>
Case make_case(std::string name, Args... args) {
  return {std::move(name), [args...]() -> std::shared_ptr<nn::Module> {
            return Holder(args...).ptr();
          }};
}

std::vector<Case> layer_cases() {
  using BatchNorm = nn::BatchNormOptions;
  const auto embedding = nn::EmbeddingOptions(9, 5);
  const auto bag = nn::EmbeddingBagOptions(9, 5);
  return {
      make_case<nn::Linear>("Linear", 7, 5),
      make_case<nn::Linear>("LinearNoBias",
                            nn::LinearOptions(7, 5).bias(false)),
      make_case<nn::Bilinear>("Bilinear", 3, 4, 5),
      make_case<nn::Embedding>("Embedding", embedding),
      make_case<nn::Embedding>("EmbeddingPadding",
                               nn::EmbeddingOptions(9, 5).padding_idx(-2)),
      make_case<nn::EmbeddingBag>("EmbeddingBag", bag),
      make_case<nn::Conv1d>("Conv1d", nn::Conv1dOptions(4, 6, 3).groups(2)),
      make_case<nn::Conv2d>("Conv2d", nn::Conv2dOptions(4, 6, 3)),
      make_case<nn::Conv2d>("Conv2dNoBias",
                            nn::Conv2dOptions(4, 6, 3).bias(false)),
      make_case<nn::Conv3d>("Conv3d", nn::Conv3dOptions(4, 6, 2)),
      make_case<nn::ConvTranspose1d>(
          "ConvTranspose1d", nn::ConvTranspose1dOptions(4, 6, 3).groups(2)),
      make_case<nn::ConvTranspose2d>("ConvTranspose2d",
                                     nn::ConvTranspose2dOptions(4, 6, 3)),
      make_case<nn::ConvTranspose3d>("ConvTranspose3d",
                                     nn::ConvTranspose3dOptions(4, 6, 2)),
      make_case<nn::BatchNorm1d>("BatchNorm1d", BatchNorm(5)),
      make_case<nn::BatchNorm2d>("BatchNorm2d", BatchNorm(5).affine(false)),
      make_case<nn::BatchNorm3d>("BatchNorm3d",
                                 BatchNorm(5).track_running_stats(false)),
      make_case<nn::InstanceNorm1d>(
          "InstanceNorm1d",
          nn::InstanceNormOptions(5).affine(true).track_running_stats(true)),
      make_case<nn::InstanceNorm2d>("InstanceNorm2d",
                                    nn::InstanceNormOptions(5).affine(true)),
      make_case<nn::InstanceNorm3d>(
          "InstanceNorm3d",
          nn::InstanceNormOptions(5).track_running_stats(true)),
      make_case<nn::LayerNorm>("LayerNorm", nn::LayerNormOptions({3, 4})),
      make_case<nn::GroupNorm>("GroupNorm", nn::GroupNormOptions(2, 6)),
  };
}

std::vector<Case> recurrent_and_composed_cases() {
  using Attention = nn::MultiheadAttentionOptions;
  const auto lstm = nn::LSTMOptions(5, 6).num_layers(2).bidirectional(true);
  return {
      make_case<nn::RNN>("RNN", nn::RNNOptions(5, 6).num_layers(2)),
      make_case<nn::LSTM>("LSTM", lstm),
      make_case<nn::LSTM>("LSTMProjection", nn::LSTMOptions(5, 6).proj_size(3)),
      make_case<nn::GRU>("GRU", nn::GRUOptions(5, 6).bias(false)),
      make_case<nn::RNNCell>("RNNCell", 5, 6),
      make_case<nn::LSTMCell>("LSTMCell", 5, 6),
      make_case<nn::GRUCell>("GRUCell", nn::GRUCellOptions(5, 6).bias(false)),
      make_case<nn::PReLU>("PReLU",
                           nn::PReLUOptions().num_parameters(5).init(0.125)),
      make_case<nn::MultiheadAttention>("MultiheadAttention", Attention(8, 2)),
      make_case<nn::MultiheadAttention>("MultiheadAttentionNoBias",
                                        Attention(8, 2).bias(false)),
      make_case<nn::MultiheadAttention>(
          "MultiheadAttentionUnequal",
          Attention(8, 2).kdim(6).vdim(10).add_bias_kv(true)),
      {"Sequential",
       [] {
         nn::Sequential sequential;
         sequential->push_back(nn::Linear(3, 4));
         sequential->push_back(nn::BatchNorm1d(4));
         sequential->push_back(nn::PReLU());
         sequential->push_back(nn::Linear(4, 2));
         return sequential.ptr();
       }},
  };
}

// Modules whose constructors draw once, children before their own parameters.
std::vector<Case> exact_cases() {
  std::vector<Case> cases = layer_cases();
  for (Case& test : recurrent_and_composed_cases()) {
    cases.push_back(std::move(test));
  }
  return cases;
}

// Modules whose constructors draw a parameter twice, copy one layer to all, or
// draw their children in an order that the C++ compiler chose.
std::vector<Case> alike_cases() {
  const auto encoder =
      nn::TransformerEncoderLayerOptions(32, 4).dim_feedforward(48);
  const auto decoder =
      nn::TransformerDecoderLayerOptions(32, 4).dim_feedforward(48);
  return {
      make_case<nn::AdaptiveLogSoftmaxWithLoss>(
          "AdaptiveLogSoftmaxWithLoss",
          nn::AdaptiveLogSoftmaxWithLossOptions(32, 60, {20, 40})
              .div_value(2.0)
              .head_bias(true)),
      make_case<nn::TransformerEncoderLayer>("EncoderLayer", encoder),
      make_case<nn::TransformerDecoderLayer>("DecoderLayer", decoder),
      {"Encoder",
       [=] {
         nn::TransformerEncoderOptions options(
             nn::TransformerEncoderLayer(encoder), 2);
         options.norm(nn::AnyModule(nn::LayerNorm(nn::LayerNormOptions({32}))));
         return nn::TransformerEncoder(options).ptr();
       }},
      {"Decoder",
       [=] {
         return nn::TransformerDecoder(
                    nn::TransformerDecoderOptions(
                        nn::TransformerDecoderLayer(decoder), 2))
             .ptr();
       }},
      make_case<nn::Transformer>("Transformer", nn::TransformerOptions(32, 4)
                                                    .num_encoder_layers(2)
                                                    .num_decoder_layers(1)
                                                    .dim_feedforward(48)),
  };
}

std::shared_ptr<nn::Module> make_seeded(const Factory& make) {
  torch::manual_seed(1234);
  return make();
}

void spoil(nn::Module& module) {
  const torch::NoGradGuard no_grad;
  const auto fill = [](torch::Tensor& tensor) {
    if (tensor.is_floating_point()) {
      tensor.fill_(std::numeric_limits<double>::quiet_NaN());
    } else {
      tensor.fill_(77);
    }
  };
  for (auto& parameter : module.parameters()) fill(parameter);
  for (auto& buffer : module.buffers()) fill(buffer);
}

void initialize_children_first(nn::Module& module) {
  for (const auto& child : module.children()) initialize_children_first(*child);
  EXPECT_NE(initialize_module(module), Initialized::unknown_type)
      << module.name();
}

// Parents first, with nothing but the chain of ancestors to know them by.
void initialize_one_by_one(nn::Module& module,
                           std::vector<nn::Module*> ancestors = {}) {
  EXPECT_NE(initialize_module(module, ancestors), Initialized::unknown_type)
      << module.name();
  ancestors.insert(ancestors.begin(), &module);
  for (const auto& child : module.children()) {
    initialize_one_by_one(*child, ancestors);
  }
}

void expect_equal(const nn::Module& got, const nn::Module& expected) {
  const auto parameters = got.named_parameters();
  for (const auto& item : expected.named_parameters()) {
    EXPECT_TRUE(torch::equal(parameters[item.key()], item.value()))
        << item.key();
  }
  const auto buffers = got.named_buffers();
  for (const auto& item : expected.named_buffers()) {
    EXPECT_TRUE(torch::equal(buffers[item.key()], item.value())) << item.key();
  }
}

// Constants are equal; else the standard deviations differ by less than six
// times their own error, which is about 0.45 / sqrt(n) for a uniform draw, and
// sqrt(2) times that for a difference. The means by six errors of a mean.
void expect_alike(const nn::Module& got, const nn::Module& expected) {
  const auto parameters = got.named_parameters();
  for (const auto& item : expected.named_parameters()) {
    const torch::Tensor& value = parameters[item.key()];
    const double deviation = item.value().std().item<double>();
    if (deviation == 0) {
      EXPECT_TRUE(torch::equal(value, item.value())) << item.key();
      continue;
    }
    const double error = 6 * std::sqrt(2.0 / value.numel()) * deviation;
    EXPECT_NEAR(value.std().item<double>(), deviation, 0.45 * error)
        << item.key();
    EXPECT_NEAR(value.mean().item<double>(), 0, error) << item.key();
    EXPECT_FALSE(torch::equal(value, torch::zeros_like(value))) << item.key();
  }
}

TEST(Initializers, RepeatTheConstructorBitForBit) {
  for (const Case& test : exact_cases()) {
    SCOPED_TRACE(test.name);
    const auto expected = make_seeded(test.make);
    const auto module = make_seeded(test.make);
    spoil(*module);
    torch::manual_seed(1234);
    initialize_children_first(*module);
    expect_equal(*module, *expected);
  }
}

TEST(Initializers, DrawTransformersLikeTheirConstructors) {
  for (const Case& test : alike_cases()) {
    SCOPED_TRACE(test.name);
    const auto expected = make_seeded(test.make);
    const auto module = make_seeded(test.make);
    spoil(*module);
    initialize_children_first(*module);
    expect_alike(*module, *expected);
  }
}

TEST(Initializers, DrawTransformersOneModuleAtATimeParentsFirst) {
  for (const Case& test : alike_cases()) {
    SCOPED_TRACE(test.name);
    const auto expected = make_seeded(test.make);
    const auto module = make_seeded(test.make);
    spoil(*module);
    initialize_one_by_one(*module);
    expect_alike(*module, *expected);
  }
}

TEST(Initializers, LeaveAllOtherModulesAloneWhenGivenAncestors) {
  nn::MultiheadAttention attention(8, 2);
  spoil(*attention);
  initialize_module(*attention, {});
  EXPECT_FALSE(attention->in_proj_weight.isnan().any().item<bool>());
  EXPECT_TRUE(attention->out_proj->weight.isnan().all().item<bool>());
  EXPECT_TRUE(attention->out_proj->bias.isnan().all().item<bool>());

  nn::Module* const ancestors[] = {attention.ptr().get()};
  initialize_module(*attention->out_proj, ancestors);
  EXPECT_FALSE(attention->out_proj->weight.isnan().any().item<bool>());
  EXPECT_TRUE(torch::equal(attention->out_proj->bias, torch::zeros({8})));
}

TEST(Initializers, KeepTheTensorsThatAreRegistered) {
  auto cases = exact_cases();
  for (Case& test : alike_cases()) cases.push_back(std::move(test));
  for (const Case& test : cases) {
    SCOPED_TRACE(test.name);
    const auto module = test.make();
    const auto tensors = module->named_parameters();
    const auto buffers = module->named_buffers();
    initialize_children_first(*module);
    ASSERT_EQ(module->named_parameters().size(), tensors.size());
    for (const auto& item : module->named_parameters()) {
      EXPECT_TRUE(item.value().is_same(tensors[item.key()])) << item.key();
      EXPECT_TRUE(item.value().requires_grad()) << item.key();
    }
    for (const auto& item : module->named_buffers()) {
      EXPECT_TRUE(item.value().is_same(buffers[item.key()])) << item.key();
    }
  }
}

TEST(Initializers, FillRecurrentModulesThroughTheDictionary) {
  nn::LSTM lstm(3, 4);
  spoil(*lstm);
  initialize_module(*lstm);
  for (const auto& parameter : lstm->parameters()) {
    EXPECT_LE(parameter.abs().max().item<float>(), 0.5F);  // 1 / sqrt(4)
  }
}

TEST(Initializers, HaveNothingToDoForModulesWithoutTensors) {
  nn::Sequential sequential(nn::Linear(2, 2));
  spoil(*sequential);
  EXPECT_EQ(initialize_module(*sequential), Initialized::nothing_to_do);
  EXPECT_TRUE(sequential->parameters()[0].isnan().all().item<bool>());
  EXPECT_EQ(initialize_module(*nn::LayerNorm(
                nn::LayerNormOptions({3}).elementwise_affine(false))),
            Initialized::nothing_to_do);
  EXPECT_EQ(initialize_module(*nn::Linear(2, 2)), Initialized::yes);
}

TEST(Initializers, LeaveGivenEmbeddingsAlone) {
  const auto weights = torch::arange(6, torch::kFloat32).view({2, 3});
  auto embedding = nn::Embedding::from_pretrained(weights);
  EXPECT_EQ(initialize_module(*embedding), Initialized::nothing_to_do);
  EXPECT_TRUE(torch::equal(embedding->weight,
                           torch::arange(6, torch::kFloat32).view({2, 3})));
  auto bag = nn::EmbeddingBag::from_pretrained(weights);
  EXPECT_EQ(initialize_module(*bag), Initialized::nothing_to_do);
}

struct Scale : nn::Module {
  Scale() { weight = register_parameter("weight", torch::full({3}, 7.0)); }
  torch::Tensor weight;
};

struct OwnScale : Scale, Initializable {
  void reset_parameters() override { nn::init::ones_(weight); }
};

struct Table : nn::Module {
  Table() { table = register_buffer("table", torch::zeros({3})); }
  torch::Tensor table;
};

struct SameLinear : nn::LinearImpl {
  SameLinear() : LinearImpl(nn::LinearOptions(3, 2)) {}
};

struct LoraLinear : SameLinear {
  LoraLinear() { low = register_parameter("low", torch::full({1, 3}, 7.0)); }
  torch::Tensor low;
};

struct OwnLinear : LoraLinear, Initializable {
  void reset_parameters() override {
    LinearImpl::reset_parameters();
    nn::init::zeros_(low);
  }
};

struct CountingLstm : nn::LSTMImpl {
  CountingLstm() : LSTMImpl(nn::LSTMOptions(2, 3)) {
    calls = register_buffer("calls", torch::full({1}, 7));
  }
  torch::Tensor calls;
};

TEST(Initializers, AskModulesThatSayHow) {
  OwnScale scale;
  EXPECT_EQ(initialize_module(scale), Initialized::yes);
  EXPECT_TRUE(torch::equal(scale.weight, torch::ones({3})));
  OwnLinear linear;
  spoil(linear);
  EXPECT_EQ(initialize_module(linear), Initialized::yes);
  EXPECT_FALSE(linear.weight.isnan().any().item<bool>());
  EXPECT_TRUE(torch::equal(linear.low, torch::zeros({1, 3})));
}

TEST(Initializers, SayThatTheyDoNotKnowAType) {
  Scale scale;
  EXPECT_EQ(initialize_module(scale), Initialized::unknown_type);
  EXPECT_TRUE(torch::equal(scale.weight, torch::full({3}, 7.0)));
  Table table;
  EXPECT_EQ(initialize_module(table), Initialized::unknown_type);
}

TEST(Initializers, KnowDerivedModulesUntilTheyAddATensor) {
  SameLinear same;
  spoil(same);
  EXPECT_EQ(initialize_module(same), Initialized::yes);
  EXPECT_FALSE(same.weight.isnan().any().item<bool>());
  LoraLinear lora;
  EXPECT_EQ(initialize_module(lora), Initialized::unknown_type);
  CountingLstm lstm;
  EXPECT_EQ(initialize_module(lstm), Initialized::unknown_type);
}

}  // namespace
}  // namespace tessera
