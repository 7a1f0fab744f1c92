// Llama-type models go to transformers and come from there with their logits.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/train/llama.h"
#include "tests/support/temporary_folder.h"

namespace tessera::train {
namespace {

using testing::TemporaryFolder;

// fp32 sums of some hundred numbers in another order.
constexpr double kBound = 2e-5;

constexpr ModelConfig kSmall{.vocab = 48,
                             .dim = 32,
                             .layers = 2,
                             .heads = 4,
                             .kv_heads = 2,
                             .ffn = 40,
                             .seq = 16,
                             // Not the default of either side.
                             .rope_base = 500,
                             .norm_eps = 1e-3};

// What a command printed when it failed, else "".
std::string run(const std::string& command) {
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return "popen failed";
  std::string output;
  std::array<char, 4096> buffer{};
  while (const size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    output.append(buffer.data(), got);
  }
  return ::pclose(pipe) == 0 ? "" : command + " failed: " + output;
}

std::string referee(const std::string& arguments) {
  return run(str("timeout 400 ", std::getenv("TESSERA_PYTHON"), " " REFEREE " ",
                 arguments));
}

std::string program(const std::string& arguments) {
  return run("timeout 400 " TESSERA_PROGRAM " checkpoint " + arguments);
}

Llama small_model(const ModelConfig& config) {
  torch::manual_seed(5);
  Llama model(config);
  const torch::NoGradGuard no_grad;
  for (const torch::Tensor& parameter : model->parameters()) {
    if (parameter.dim() > 1) {
      parameter.normal_(0, 0.3);
    } else {
      parameter.uniform_(0.5, 1.5);  // ones could be exchanged
    }
  }
  return model;
}

torch::Tensor logits_of(Llama& model, const torch::Tensor& tokens) {
  const torch::NoGradGuard no_grad;
  return model->forward(tokens);
}

// The config that a run leaves, as far as it speaks of the model.
std::string toml_of(const ModelConfig& c) {
  return str("[model]\nvocab = ", c.vocab, "\ndim = ", c.dim,
             "\nlayers = ", c.layers, "\nheads = ", c.heads,
             "\nkv_heads = ", c.kv_heads, "\nffn = ", c.ffn, "\nseq = ", c.seq,
             "\nrope_base = ", c.rope_base, "\nnorm_eps = ", c.norm_eps,
             "\ntied = ", c.tied ? "true" : "false",
             "\n[data]\ntokens = \"none\"\n");
}

class Transformers : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("TESSERA_TRANSFORMERS") == nullptr) {
      GTEST_SKIP() << "TESSERA_TRANSFORMERS is not set (scripts/setup test)";
    }
    ASSERT_NE(std::getenv("TESSERA_PYTHON"), nullptr);
  }
  TemporaryFolder folder_;
};

TEST_F(Transformers, GivesTheLogitsOfAnExportedModel) {
  for (const bool tied : {false, true}) {
    ModelConfig config = kSmall;
    config.tied = tied;
    const std::string run_folder = folder_ / (tied ? "tied" : "plain");
    const std::string saved = run_folder + "/checkpoints/step-1";
    Llama model = small_model(config);
    checkpoint::save(saved, state_of(*model));
    testing::write_bytes(run_folder + "/config.toml", toml_of(config));
    const torch::Tensor tokens = torch::arange(12).view({1, 12}) * 7 % 48;
    safetensors::save(
        run_folder + "/logits.safetensors",
        {{"tokens", tokens}, {"logits", logits_of(model, tokens)}});
    const std::string exported = run_folder + "/hf";
    EXPECT_EQ(program(str("export ", saved, " ", exported)), "");
    EXPECT_EQ(
        referee(str("ours ", exported, " ", run_folder, "/logits.safetensors")),
        "");
  }
}

TEST_F(Transformers, ModelsThatItMadeGiveItsLogitsHere) {
  const std::string made = folder_ / "made";
  const std::string file = folder_ / "logits.safetensors";
  ASSERT_EQ(referee(str("make ", made, " ", file)), "");
  const std::string imported = folder_ / "step-0";
  ASSERT_EQ(program(str("import ", made, " ", imported)), "");
  Llama model = small_model(kSmall);
  const State state = state_of(*model);
  checkpoint::load(imported, state);
  std::map<std::string, torch::Tensor> expected;
  for (const auto& [name, tensor] : safetensors::load(file)) {
    expected[name] = tensor;
  }
  const torch::Tensor got = logits_of(model, expected.at("tokens"));
  EXPECT_LE((got - expected.at("logits")).abs().max().item<double>(), kBound);
}

}  // namespace
}  // namespace tessera::train
