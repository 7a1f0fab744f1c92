#include "tessera/train/model_presets.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <regex>
#include <sstream>
#include <string>

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

std::string message_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

TEST(ModelPresets, AreAllValidAndHaveDifferentNames) {
  const auto presets = model_presets();
  for (size_t i = 0; i < presets.size(); ++i) {
    EXPECT_NO_THROW(validate(presets[i].model)) << presets[i].name;
    EXPECT_GE(presets[i].batch, 1);
    for (size_t j = 0; j < i; ++j) EXPECT_NE(presets[i].name, presets[j].name);
  }
}

TEST(ModelPresets, HaveAboutTheSizeThatTheirNameSays) {
  const std::vector<std::pair<std::string, double>> sizes = {
      {"1m", 1e6},          {"10m", 10e6},        {"124m", 134e6},
      {"350m", 374e6},      {"1b", 1.1e9},        {"3b", 3.0e9},
      {"8b", 8.03e9},       {"70b", 70.55e9},     {"gpt2-124m", 124.4e6},
      {"gpt2-355m", 355e6}, {"gpt2-774m", 774e6}, {"gpt2-1.5b", 1558e6}};
  for (const auto& [name, size] : sizes) {
    const auto numel =
        static_cast<double>(num_parameters(model_preset(name).model));
    EXPECT_NEAR(numel / size, 1.0, 0.08) << name << " has " << numel;
  }
}

TEST(ModelPresets, CountTheParametersOfKnownModels) {
  EXPECT_EQ(num_parameters(model_preset("8b").model), 8030261248);
  EXPECT_EQ(num_parameters(model_preset("70b").model), 70553706496);
  EXPECT_EQ(num_parameters(model_preset("gpt2-124m").model), 124439808);
  EXPECT_EQ(num_parameters(model_preset("gpt2-1.5b").model), 1557611200);
}

TEST(ModelPresets, AgreeWithThePeerBenchmark) {
  std::ifstream file(PEER_BENCHMARK);
  std::stringstream text;
  text << file.rdbuf();
  const std::string source = text.str();
  const std::regex row(
      R"re("(\w+)":\s+\((\d+),\s+(\d+),\s+(\d+),\s+(\d+),\s+(\d+),\s+(\d+),\s+(\d+),\s+(\d+)\))re");
  int rows = 0;
  for (std::sregex_iterator it(source.begin(), source.end(), row), end;
       it != end; ++it, ++rows) {
    const auto number = [&](int group) { return std::stoll((*it)[group]); };
    const ModelPreset& preset = model_preset((*it)[1].str());
    EXPECT_EQ(preset.model.dim, number(2)) << preset.name;
    EXPECT_EQ(preset.model.layers, number(3)) << preset.name;
    EXPECT_EQ(preset.model.heads, number(4)) << preset.name;
    EXPECT_EQ(preset.model.kv_heads, number(5)) << preset.name;
    EXPECT_EQ(preset.model.ffn, number(6)) << preset.name;
    EXPECT_EQ(preset.model.vocab, number(7)) << preset.name;
    EXPECT_EQ(preset.model.seq, number(8)) << preset.name;
    EXPECT_EQ(preset.batch, number(9)) << preset.name;
  }
  EXPECT_EQ(rows, 6);
}

TEST(ModelPresets, RefuseANameThatNoneHas) {
  EXPECT_THROW((void)model_preset("zebra"), InvalidArgument);
  const std::string near = message_of([] { (void)model_preset("gpt2-124n"); });
  EXPECT_NE(near.find("did you mean 'gpt2-124m'?"), std::string::npos) << near;
}

TEST(ModelPresets, FlopsCountTheMatricesThatMultiply) {
  ModelConfig m{.vocab = 10,
                .dim = 4,
                .layers = 1,
                .heads = 2,
                .kv_heads = 1,
                .ffn = 8,
                .seq = 3};
  // q, o: 16 each; k, v: 8 each; three of 32; two norms; head; last norm.
  EXPECT_EQ(flops_per_token(m),
            6.0 * (2 * 16 + 2 * 8 + 3 * 32 + 8 + 40 + 4) + 6.0 * 4 * 3);
  EXPECT_EQ(num_parameters(m), 2 * 16 + 2 * 8 + 3 * 32 + 8 + 2 * 40 + 4);
  const double untied = flops_per_token(m);
  m.tied = true;  // the head multiplies all the same
  EXPECT_EQ(flops_per_token(m), untied);
}

TEST(ModelPresets, ValidateNamesTheKeyAndItsValue) {
  const auto error = [](auto change) {
    ModelConfig model;
    change(model);
    return message_of([&] { validate(model); });
  };
  using M = ModelConfig;
  EXPECT_EQ(error([](M& m) { m.layers = 0; }),
            "model.layers is 0; give 1 or more.");
  EXPECT_EQ(error([](M& m) { m.vocab = -3; }),
            "model.vocab is -3; give 1 or more.");
  EXPECT_EQ(error([](M& m) { m.heads = 3; }),
            "model.heads is 3 and model.dim is 128; give a heads that divides "
            "dim.");
  EXPECT_EQ(error([](M& m) { m.kv_heads = 3; }),
            "model.kv_heads is 3 and model.heads is 4; give a kv_heads that "
            "divides heads.");
  EXPECT_NE(error([](M& m) { m.heads = m.kv_heads = 128; }).find("even width"),
            std::string::npos);
  EXPECT_NE(error([](M& m) { m.norm_eps = 0; }).find("norm_eps"),
            std::string::npos);
  EXPECT_NE(error([](M& m) {
              m.architecture = Architecture::gpt2;
              m.kv_heads = 2;
            }).find("as many of both"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera::train
