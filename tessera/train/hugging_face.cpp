#include "tessera/train/hugging_face.h"

#include <array>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

using nlohmann::json;

constexpr std::string_view kModel = "model.";
constexpr std::string_view kLayers = "layers.";
constexpr std::string_view kWeight = ".weight";

// A matrix or vector of a layer, and the module over there that it is in.
struct Part {
  std::string_view name;
  std::string_view module;
};

constexpr std::array kParts = {
    Part{"q_proj", "self_attn."},
    Part{"k_proj", "self_attn."},
    Part{"v_proj", "self_attn."},
    Part{"o_proj", "self_attn."},
    Part{"gate_proj", "mlp."},
    Part{"up_proj", "mlp."},
    Part{"down_proj", "mlp."},
    Part{"input_layernorm", ""},
    Part{"post_attention_layernorm", ""},
};

// "layers.12." of "layers.12.rest"; nothing for other names.
std::string_view layer_of(std::string_view name) {
  if (!name.starts_with(kLayers)) return {};
  const size_t end = name.find('.', kLayers.size());
  if (end == std::string_view::npos || end == kLayers.size()) return {};
  const std::string_view number =
      name.substr(kLayers.size(), end - kLayers.size());
  if (number.find_first_not_of("0123456789") != number.npos) return {};
  return name.substr(0, end + 1);
}

bool is_outside_of_layers(std::string_view name) {
  return name == "embed_tokens.weight" || name == "norm.weight";
}

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Unsupported(str("'", path, "': ", why, "."));
}

// A number, or what stands for it when the key is not there or null.
template <class T>
T number_or(const json& config, const char* key, T otherwise) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return otherwise;
  return found->get<T>();
}

// Older files have rope_theta beside the rest, newer ones in rope_parameters.
double rope_base_of(const json& config, const std::string& path) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto found = config.find(key);
    if (found == config.end() || found->is_null()) continue;
    const std::string type =
        found->value("rope_type", found->value("type", std::string("default")));
    if (type != "default") {
      refuse(path, str("positions are scaled ('", type,
                       "'), which our models do not do"));
    }
    if (found->contains("rope_theta")) return found->at("rope_theta");
  }
  return number_or(config, "rope_theta", 10000.0);
}

void check_supported(const json& config, const ModelConfig& model,
                     const std::string& path) {
  const std::string type = config.value("model_type", std::string("(none)"));
  if (type != "llama") {
    refuse(path, str("model_type is '", type, "'; expected 'llama'"));
  }
  if (config.value("hidden_act", std::string("silu")) != "silu") {
    refuse(path, "hidden_act is not 'silu'");
  }
  for (const char* bias : {"attention_bias", "mlp_bias"}) {
    if (config.value(bias, false)) {
      refuse(path, str(bias, " is true; our models have no biases"));
    }
  }
  const int64_t width = model.dim / model.heads;
  if (number_or(config, "head_dim", width) != width) {
    refuse(path, "head_dim is not hidden_size / num_attention_heads");
  }
}

ModelConfig model_of(const json& config, const std::string& path) {
  ModelConfig model;
  model.vocab = config.at("vocab_size");
  model.dim = config.at("hidden_size");
  model.layers = config.at("num_hidden_layers");
  model.heads = config.at("num_attention_heads");
  model.kv_heads = number_or(config, "num_key_value_heads", model.heads);
  model.ffn = config.at("intermediate_size");
  model.seq = config.at("max_position_embeddings");
  model.norm_eps = number_or(config, "rms_norm_eps", 1e-6);
  model.tied = config.value("tie_word_embeddings", false);
  model.rope_base = rope_base_of(config, path);
  return model;
}

}  // namespace

std::optional<std::string> to_hugging_face(std::string_view name) {
  if (name == "lm_head.weight") return std::string(name);
  if (is_outside_of_layers(name)) return str(kModel, name);
  const std::string_view layer = layer_of(name);
  if (layer.empty() || !name.ends_with(kWeight)) return std::nullopt;
  std::string_view part = name.substr(layer.size());
  part.remove_suffix(kWeight.size());
  for (const Part& known : kParts) {
    if (known.name != part) continue;
    return str(kModel, layer, known.module, part, kWeight);
  }
  return std::nullopt;
}

std::optional<std::string> from_hugging_face(std::string_view name) {
  if (name == "lm_head.weight") return std::string(name);
  if (!name.starts_with(kModel)) return std::nullopt;
  name.remove_prefix(kModel.size());
  if (is_outside_of_layers(name)) return std::string(name);
  const std::string_view layer = layer_of(name);
  if (layer.empty()) return std::nullopt;
  const std::string_view rest = name.substr(layer.size());
  for (const Part& known : kParts) {
    if (rest != str(known.module, known.name, kWeight)) continue;
    return str(layer, known.name, kWeight);
  }
  return std::nullopt;
}

std::string write_hugging_face_config(const ModelConfig& model,
                                      std::string_view dtype) {
  require<Unsupported>(model.architecture == Architecture::llama, [] {
    return str("only Llama-type models have the layout of transformers here.");
  });
  const json config = {
      {"architectures", json::array({"LlamaForCausalLM"})},
      {"model_type", "llama"},
      {"vocab_size", model.vocab},
      {"hidden_size", model.dim},
      {"intermediate_size", model.ffn},
      {"num_hidden_layers", model.layers},
      {"num_attention_heads", model.heads},
      {"num_key_value_heads", model.kv_heads},
      {"head_dim", model.dim / model.heads},
      {"max_position_embeddings", model.seq},
      {"rms_norm_eps", model.norm_eps},
      {"rope_theta", model.rope_base},
      {"rope_scaling", nullptr},
      {"tie_word_embeddings", model.tied},
      {"hidden_act", "silu"},
      {"attention_bias", false},
      {"mlp_bias", false},
      {"attention_dropout", 0.0},
      {"initializer_range", 0.02},
      {"bos_token_id", nullptr},
      {"eos_token_id", nullptr},
      {"use_cache", true},
      {"torch_dtype", dtype},
  };
  return config.dump(2) + "\n";
}

ModelConfig read_hugging_face_config(std::string_view text,
                                     const std::string& path) {
  try {
    const json config = json::parse(text);
    ModelConfig model = model_of(config, path);
    require<CheckpointError>(model.heads > 0, [&] {
      return str("'", path, "': num_attention_heads is not above 0.");
    });
    check_supported(config, model, path);
    validate(model);
    return model;
  } catch (const json::exception& error) {
    throw CheckpointError(
        str("'", path, "' is no config of a model: ", error.what(), "."));
  }
}

}  // namespace tessera::train
