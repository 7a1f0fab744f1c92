// Names and configs of Llama-type models, ours and those of transformers.
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/train/hugging_face.h"
#include "tests/support/temporary_folder.h"

namespace tessera::train {
namespace {

using testing::message_of;

TEST(HuggingFaceNames, GoBothWays) {
  const std::pair<const char*, const char*> names[] = {
      {"embed_tokens.weight", "model.embed_tokens.weight"},
      {"norm.weight", "model.norm.weight"},
      {"lm_head.weight", "lm_head.weight"},
      {"layers.0.q_proj.weight", "model.layers.0.self_attn.q_proj.weight"},
      {"layers.12.o_proj.weight", "model.layers.12.self_attn.o_proj.weight"},
      {"layers.3.up_proj.weight", "model.layers.3.mlp.up_proj.weight"},
      {"layers.3.down_proj.weight", "model.layers.3.mlp.down_proj.weight"},
      {"layers.1.input_layernorm.weight",
       "model.layers.1.input_layernorm.weight"},
      {"layers.1.post_attention_layernorm.weight",
       "model.layers.1.post_attention_layernorm.weight"},
  };
  for (const auto& [ours, theirs] : names) {
    EXPECT_EQ(to_hugging_face(ours), theirs);
    EXPECT_EQ(from_hugging_face(theirs), ours);
  }
}

TEST(HuggingFaceNames, AreNoneForWhatALlamaHasNot) {
  for (const char* name :
       {"", "cos", "layers.", "layers.1", "layers.x.q_proj.weight",
        "layers.1.q_proj.bias", "layers.1.other.weight",
        "layers..q_proj.weight", "model.embed_tokens.weight"}) {
    EXPECT_EQ(to_hugging_face(name), std::nullopt) << name;
  }
  for (const char* name :
       {"", "embed_tokens.weight", "model.layers.0.q_proj.weight",
        "model.layers.0.mlp.q_proj.weight",
        "model.layers.0.self_attn.q_proj.bias"}) {
    EXPECT_EQ(from_hugging_face(name), std::nullopt) << name;
  }
}

TEST(HuggingFaceConfig, ReadsBackWhatWasWritten) {
  ModelConfig model = model_preset("8b").model;
  model.rope_base = 500000;
  model.tied = true;
  const std::string json = write_hugging_face_config(model, "bfloat16");
  EXPECT_EQ(read_hugging_face_config(json, "config.json"), model);
  model.architecture = Architecture::gpt2;
  EXPECT_THROW((void)write_hugging_face_config(model, "float32"), Unsupported);
}

// A config with `more` entries that count.
std::string config(const std::string& more) {
  return R"({"model_type": "llama", "vocab_size": 32, "hidden_size": 16,
    "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24,
    "max_position_embeddings": 64)" +
         more + "}";
}

TEST(HuggingFaceConfig, OfNewerAndOlderVersionsIsRead) {
  const auto base_of = [](const std::string& more) {
    return read_hugging_face_config(config(more), "c").rope_base;
  };
  EXPECT_EQ(base_of(""), 10000.0);
  EXPECT_EQ(base_of(R"(, "rope_theta": 5.0, "rope_scaling": null)"), 5.0);
  EXPECT_EQ(base_of(R"(, "rope_parameters":
      {"rope_theta": 7.0, "rope_type": "default"})"),
            7.0);
  EXPECT_EQ(read_hugging_face_config(config(""), "c").kv_heads, 4);
}

TEST(HuggingFaceConfig, OfWhatOurModelsDoNotDoIsRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"(, "rope_scaling": {"type": "linear", "factor": 2.0})", "'linear'"},
      {R"(, "rope_parameters": {"rope_type": "llama3"})", "'llama3'"},
      {R"(, "attention_bias": true)", "attention_bias"},
      {R"(, "mlp_bias": true)", "mlp_bias"},
      {R"(, "head_dim": 8)", "head_dim"},
      {R"(, "hidden_act": "gelu")", "hidden_act"},
      {R"(, "model_type": "mistral")", "'mistral'"},
  };
  for (const auto& [more, expected] : cases) {
    const std::string error = message_of<Unsupported>(
        [&] { (void)read_hugging_face_config(config(more), "c.json"); });
    EXPECT_NE(error.find(expected), std::string::npos) << error;
    EXPECT_NE(error.find("c.json"), std::string::npos) << error;
  }
  EXPECT_THROW((void)read_hugging_face_config("{", "c"), CheckpointError);
  EXPECT_THROW((void)read_hugging_face_config("{}", "c"), CheckpointError);
}

}  // namespace
}  // namespace tessera::train
