// Layers that fully_shard refuses, by name, and what is refused of a sharded
// layer.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/shard/fully_shard.h"
#include "tests/layers/probe.h"

namespace tessera::testing {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

/// Runs `body` as the one rank of a world.
void run_alone(const std::function<void(const DeviceMesh&)>& body) {
  run_ranks(
      1, [&](const World& world) { body(init_device_mesh(world)); }, kDeadline);
}

// A model whose part "inner" is to be refused.
struct OuterImpl : nn::Module {
  explicit OuterImpl(ModulePtr module) {
    linear = register_module("linear", nn::Linear(3, 3));
    inner = register_module("inner", std::move(module));
  }
  nn::Linear linear{nullptr};
  ModulePtr inner;
};
TORCH_MODULE(Outer);

/// Expects an `E` that says all of `words`, and a model that is as it was.
template <class E>
void expect_refused(const ModulePtr& module,
                    const std::vector<std::string>& words) {
  run_alone([&](const DeviceMesh& mesh) {
    Outer outer(module);
    const auto before = outer->named_parameters();
    try {
      fully_shard(*outer, {.mesh = mesh});
      ADD_FAILURE() << "was not refused";
    } catch (const E& error) {
      for (const std::string& word : words) {
        EXPECT_NE(std::string(error.what()).find(word), std::string::npos)
            << "'" << word << "' is missing in: " << error.what();
      }
    }
    EXPECT_FALSE(is_fully_sharded(*outer));
    for (const auto& item : outer->named_parameters()) {
      EXPECT_TRUE(item.value().is_same(before[item.key()])) << item.key();
    }
  });
}

TEST(RefusedLayer, EmbeddingWithMaxNormWritesItsWeightInForward) {
  expect_refused<Unsupported>(
      nn::Embedding(nn::EmbeddingOptions(11, 6).max_norm(1.0)).ptr(),
      {"'inner'", "max_norm", "ignored_params"});
}

TEST(RefusedLayer, EmbeddingBagWithMaxNormWritesItsWeightInForward) {
  expect_refused<Unsupported>(
      nn::EmbeddingBag(nn::EmbeddingBagOptions(11, 6).max_norm(1.0)).ptr(),
      {"'inner'", "max_norm"});
}

// What the two errors above advise.
TEST(RefusedLayer, EmbeddingWithMaxNormIsTakenWithItsWeightIgnored) {
  run_alone([&](const DeviceMesh& mesh) {
    nn::Embedding embedding(nn::EmbeddingOptions(11, 6).max_norm(0.1));
    nn::EmbeddingBag bag(nn::EmbeddingBagOptions(11, 6).max_norm(0.1));
    for (const auto& module :
         std::vector<ModulePtr>{embedding.ptr(), bag.ptr()}) {
      Outer outer(module);
      fully_shard(*outer,
                  {.mesh = mesh, .ignored_params = module->parameters()});
      EXPECT_TRUE(is_fully_sharded(*outer));
    }
    const Tensor row = embedding(torch::zeros({1}, torch::kLong));
    EXPECT_NEAR(row.norm().item<double>(), 0.1, 1e-5) << "the layer's own rule";
    EXPECT_NEAR(embedding->weight[0].norm().item<double>(), 0.1, 1e-5);
  });
}

TEST(RefusedLayer, ParameterListReadsItsDictionary) {
  nn::ParameterList list;
  list->append(torch::ones({3, 2}));
  expect_refused<InvalidArgument>(list.ptr(),
                                  {"'inner'", "ParameterList", "members"});
}

TEST(RefusedLayer, ParameterDictReadsItsDictionary) {
  nn::ParameterDict dict;
  dict->insert("w", torch::ones({3, 2}));
  expect_refused<InvalidArgument>(dict.ptr(),
                                  {"'inner'", "ParameterDict", "members"});
}

TEST(RefusedLayer, ConvolutionInChannelsLastIsNotContiguous) {
  nn::Conv2d conv(3, 4, 3);
  torch::NoGradGuard no_grad;
  conv->weight.set_data(
      conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
  expect_refused<Unsupported>(conv.ptr(), {"'inner.weight'", "contiguous"});
}

// Every layer's own initialiser would write what is not there, or draw each
// rank's part from the same numbers.
class InitialiserOfShardedLayer : public ::testing::TestWithParam<LayerCase> {};

TEST_P(InitialiserOfShardedLayer, IsRefused) {
  run_alone([&](const DeviceMesh& mesh) {
    Probe probe = make_probe(GetParam());
    shard(probe, Nesting::layer_in_root, mesh);
    for (const auto& module : probe->layer->modules()) {
      if (module->parameters(/*recurse=*/false).empty()) continue;
      EXPECT_THROW(initialize_module(*module), Error) << module->name();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, InitialiserOfShardedLayer,
                         ::testing::ValuesIn(cases_to_initialise()),
                         [](const auto& info) { return info.param.name; });

// `to` rebuilds an RNN's list of weights from the dictionary, that is, of
// shards.
TEST(ShardedRecurrentLayer, RefusesToComputeWithShardsAfterTo) {
  run_ranks(
      2,
      [&](const World& world) {
        const DeviceMesh mesh = init_device_mesh(world);
        nn::LSTM lstm(4, 5);
        fully_shard(*lstm, {.mesh = mesh, .start_check = StartCheck::off});
        const auto convert_and_run = [&] {
          lstm->to(torch::kCPU);
          lstm->forward(torch::ones({3, 4, 4}));
        };
        EXPECT_THROW(convert_and_run(), Error);
      },
      kDeadline);
}

// The names of all torch::nn modules, out of LibTorch's headers.
std::set<std::string> module_names() {
  const std::filesystem::path headers = TESSERA_TORCH_NN_HEADERS;
  const std::regex declaration(R"(\n\s*TORCH_MODULE\((\w+)\);)");
  std::set<std::string> names;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(headers)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path());
    const std::string text(std::istreambuf_iterator<char>(file), {});
    for (std::sregex_iterator match(text.begin(), text.end(), declaration), end;
         match != end; ++match) {
      names.insert((*match)[1]);
    }
  }
  return names;
}

// "torch::nn::LinearImpl" to "Linear".
std::string short_name(const nn::Module& module) {
  std::string name = module.name();
  name = name.substr(name.rfind(':') + 1);
  return name.substr(0, name.rfind("Impl"));
}

TEST(LayerTable, HasEveryModuleOfTorchNnThatCanHoldParameters) {
  std::set<std::string> missing = module_names();
  ASSERT_GT(missing.size(), 100u) << "in " << TESSERA_TORCH_NN_HEADERS;
  for (const LayerCase& one : all_cases()) {
    missing.erase(short_name(*one.make()));
  }
  for (const char* refused : {"ParameterList", "ParameterDict"}) {
    EXPECT_EQ(missing.erase(refused), 1u) << refused;
  }
  // What is left constructs no parameter: checked by hand against the headers
  // of LibTorch 2.11, so that a new module has to be looked at.
  const std::set<std::string> without_parameters = {
      // clang-format off
      "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d",
      "AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "AdaptiveMaxPool3d",
      "AlphaDropout", "AvgPool1d", "AvgPool2d", "AvgPool3d", "BCELoss",
      "BCEWithLogitsLoss", "CELU", "CTCLoss", "ConstantPad1d", "ConstantPad2d",
      "ConstantPad3d", "CosineEmbeddingLoss", "CosineSimilarity",
      "CrossEntropyLoss", "CrossMapLRN2d", "Dropout", "Dropout2d", "Dropout3d",
      "ELU", "FeatureAlphaDropout", "Flatten", "Fold", "FractionalMaxPool2d",
      "FractionalMaxPool3d", "Functional", "GELU", "GLU", "Hardshrink",
      "Hardtanh", "HingeEmbeddingLoss", "HuberLoss", "Identity", "KLDivLoss",
      "L1Loss", "LPPool1d", "LPPool2d", "LPPool3d", "LeakyReLU",
      "LocalResponseNorm", "LogSigmoid", "LogSoftmax", "MSELoss",
      "MarginRankingLoss", "MaxPool1d", "MaxPool2d", "MaxPool3d",
      "MaxUnpool1d", "MaxUnpool2d", "MaxUnpool3d", "Mish",
      "MultiLabelMarginLoss", "MultiLabelSoftMarginLoss", "MultiMarginLoss",
      "NLLLoss", "PairwiseDistance", "PixelShuffle", "PixelUnshuffle",
      "PoissonNLLLoss", "RReLU", "ReLU", "ReLU6", "ReflectionPad1d",
      "ReflectionPad2d", "ReflectionPad3d", "ReplicationPad1d",
      "ReplicationPad2d", "ReplicationPad3d", "SELU", "SiLU", "Sigmoid",
      "SmoothL1Loss", "SoftMarginLoss", "Softmax", "Softmax2d", "Softmin",
      "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink", "Threshold",
      "TripletMarginLoss", "TripletMarginWithDistanceLoss", "Unflatten",
      "Unfold", "Upsample", "ZeroPad1d", "ZeroPad2d", "ZeroPad3d",
      // clang-format on
  };
  EXPECT_EQ(missing, without_parameters);
}

}  // namespace
}  // namespace tessera::testing
