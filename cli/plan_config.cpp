#include "cli/plan_config.h"

#include "tessera/base/error.h"
#include "tessera/train/config_file.h"

namespace tessera::cli {
namespace {

using train::ConfigReader;
using train::PlanOptions;

enum class Precision { float32 = 4, bfloat16 = 2 };  // bytes of an element

void read_model(ConfigReader& reader, PlanOptions& options) {
  std::string preset;
  reader.get("model.preset", preset);
  if (!preset.empty()) {
    options.model = train::model_preset(preset).model;
    options.batch = train::model_preset(preset).batch;
  }
  train::ModelConfig& model = options.model;
  reader.get("model.architecture", model.architecture,
             {{"llama", train::Architecture::llama},
              {"gpt2", train::Architecture::gpt2}});
  reader.get("model.vocab", model.vocab, {.min = 1});
  reader.get("model.dim", model.dim, {.min = 1});
  reader.get("model.layers", model.layers, {.min = 1});
  reader.get("model.heads", model.heads, {.min = 1});
  if (reader.has("model.heads")) model.kv_heads = model.heads;
  reader.get("model.kv_heads", model.kv_heads, {.min = 1});
  reader.get("model.ffn", model.ffn, {.min = 1});
  reader.get("model.seq", model.seq, {.min = 1});
  reader.get("model.tied", model.tied);
  validate(model);
}

int64_t read_dtype(ConfigReader& reader, const std::string& key) {
  auto dtype = Precision::float32;
  reader.get(
      key, dtype,
      {{"float32", Precision::float32}, {"bfloat16", Precision::bfloat16}});
  return static_cast<int64_t>(dtype);
}

void read_shard(ConfigReader& reader, PlanOptions& options) {
  std::string strategy = "fully_shard";
  reader.get("shard.strategy", strategy);
  require<Unsupported>(strategy == "fully_shard", [&] {
    return str(reader.where("shard.strategy"), ": shard.strategy is '",
               strategy, "'; tessera plan knows fully_shard.");
  });
  reader.get("shard.reshard", options.reshard,
             {{"auto", train::PlanReshard::automatic},
              {"always", train::PlanReshard::always},
              {"never", train::PlanReshard::never}});
  options.compute_bytes = read_dtype(reader, "shard.param_dtype");
  options.reduce_bytes = read_dtype(reader, "shard.reduce_dtype");
}

void read_batch(ConfigReader& reader, PlanOptions& options) {
  reader.get("train.batch", options.batch, {.min = 1});
  int64_t tokens = 0;
  reader.get("train.tokens_per_step", tokens, {.min = 0});
  const int64_t one = options.batch * options.model.seq * options.ranks;
  require(tokens % one == 0, [&] {
    return str(reader.where("train.tokens_per_step"),
               ": train.tokens_per_step is ", tokens,
               "; give a multiple of batch * seq * ranks, ", one, ".");
  });
  if (tokens > 0) options.micro_batches = tokens / one;
}

}  // namespace

void read_plan_config(const std::string& path,
                      const std::vector<std::string>& overrides,
                      train::PlanOptions& options) {
  auto reader = ConfigReader::from_file(path, overrides);
  require(options.ranks >= 1, [&] {
    return str("plan: ranks is ", options.ranks, "; give 1 or more.");
  });
  options.batch = 8;  // what tessera train takes when nothing is said
  read_model(reader, options);
  read_shard(reader, options);
  read_batch(reader, options);
}

}  // namespace tessera::cli
