#include "tessera/train/train_config.h"

#include <cctype>
#include <initializer_list>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/train/config_file.h"

namespace tessera::train {
namespace {

/// "train.toml:12": of the first of these keys that is set, else of none.
std::string where_of_first(const ConfigReader& reader,
                           std::initializer_list<std::string> keys) {
  for (const std::string& key : keys) {
    if (reader.has(key)) return reader.where(key);
  }
  return reader.where(*keys.begin());
}

/// The keys that `message` names, such as "model.heads".
std::vector<std::string> keys_in(const std::string& message,
                                 const std::string& table) {
  std::vector<std::string> keys;
  for (size_t at = message.find(table); at != std::string::npos;
       at = message.find(table, at + 1)) {
    size_t end = at + table.size();
    while (end < message.size() &&
           (std::islower(static_cast<unsigned char>(message[end])) != 0 ||
            message[end] == '_')) {
      ++end;
    }
    keys.push_back(message.substr(at, end - at));
  }
  return keys;
}

/// Puts the place of the first set key that an error names in front of it.
template <class Check>
void with_place(const ConfigReader& reader, const Check& check) {
  try {
    check();
  } catch (const InvalidArgument& error) {
    std::string place;
    for (const std::string& key : keys_in(error.what(), "model.")) {
      if (place.empty() && reader.has(key)) place = reader.where(key);
    }
    if (place.empty()) place = reader.where("model.preset");
    throw InvalidArgument(str(place, ": ", error.what()));
  }
}

void read_preset(ConfigReader& reader, TrainConfig& config) {
  reader.get("model.preset", config.preset);
  if (config.preset.empty()) return;
  with_place(reader, [&] {
    const ModelPreset& preset = model_preset(config.preset);
    config.model = preset.model;
    config.train.batch = preset.batch;
  });
}

void read_model(ConfigReader& reader, TrainConfig& config) {
  read_preset(reader, config);
  ModelConfig& model = config.model;
  reader.get("model.architecture", model.architecture,
             {{"llama", Architecture::llama}, {"gpt2", Architecture::gpt2}});
  reader.get("model.vocab", model.vocab, {.min = 1});
  reader.get("model.dim", model.dim, {.min = 1});
  reader.get("model.layers", model.layers, {.min = 1});
  reader.get("model.heads", model.heads, {.min = 1});
  if (!reader.has("model.kv_heads") && reader.has("model.heads")) {
    model.kv_heads = model.heads;
  }
  reader.get("model.kv_heads", model.kv_heads, {.min = 1});
  reader.get("model.ffn", model.ffn, {.min = 1});
  reader.get("model.seq", model.seq, {.min = 1});
  reader.get("model.rope_base", model.rope_base, {.above = 0});
  reader.get("model.norm_eps", model.norm_eps, {.above = 0});
  reader.get("model.tied", model.tied);
  reader.get("model.kernels", model.kernels,
             {{"plain", ModelKernels::plain}, {"fused", ModelKernels::fused}});
  reader.get("model.recompute", model.recompute,
             {{"none", RecomputePolicy::none},
              {"selective", RecomputePolicy::selective},
              {"offload", RecomputePolicy::offload},
              {"but_attention", RecomputePolicy::but_attention},
              {"block", RecomputePolicy::block}});
  reader.get("model.selective_last", model.selective_last, {.min = 0});
  reader.get("model.offload_blocks", model.offload_blocks, {.min = 0});
  reader.get("model.offload_gb_per_s", model.offload_gb_per_s, {.above = 0});
  reader.get("model.dropout", model.dropout, {.min = 0, .max = 1});
  reader.get("model.init_std", config.init_std, {.above = 0});
  with_place(reader, [&] { validate(model); });
}

void read_train(ConfigReader& reader, LoopConfig& train) {
  reader.get("train.steps", train.steps, {.min = 1});
  reader.get("train.batch", train.batch, {.min = 1});
  reader.get("train.tokens_per_step", train.tokens_per_step, {.min = 0});
  reader.get("train.seed", train.seed);
  reader.get("train.max_norm", train.max_norm, {.min = 0});
  reader.get("train.nonfinite", train.on_nonfinite,
             {{"stop", OnNonFinite::stop}, {"skip", OnNonFinite::skip}});
  reader.get("train.deterministic", train.deterministic);
  reader.get("train.graph", train.graph,
             {{"off", GraphUse::off},
              {"on", GraphUse::on},
              {"if_possible", GraphUse::if_possible}});
  reader.get("train.step_in_backward", train.step_in_backward);
}

/// What wants all gradients before the first step cannot be had.
void check_step_in_backward(const ConfigReader& reader,
                            const TrainConfig& config) {
  const auto refuse_if = [&](bool bad, const std::string& why) {
    require<InvalidArgument>(!bad || !config.train.step_in_backward, [&] {
      return str(reader.where("train.step_in_backward"),
                 ": train.step_in_backward is on and ", why);
    });
  };
  refuse_if(config.train.max_norm > 0,
            "train.max_norm is above 0, but clipping needs all gradients "
            "before the first step; set it to 0.");
  refuse_if(config.train.on_nonfinite == OnNonFinite::skip,
            "train.nonfinite is skip, but units have stepped by the time that "
            "a loss is known; use stop.");
  refuse_if(config.optimizer.kind == OptimizerKind::torch_adamw,
            "optimizer.name is torch_adamw, which cannot; use adamw.");
}

void read_optimizer(ConfigReader& reader, OptimizerConfig& optimizer) {
  reader.get("optimizer.name", optimizer.kind,
             {{"adamw", OptimizerKind::fused_adamw},
              {"torch_adamw", OptimizerKind::torch_adamw}});
  reader.get("optimizer.lr", optimizer.lr, {.above = 0});
  reader.get("optimizer.beta1", optimizer.beta1, {.min = 0, .max = 1});
  reader.get("optimizer.beta2", optimizer.beta2, {.min = 0, .max = 1});
  reader.get("optimizer.eps", optimizer.eps, {.min = 0});
  reader.get("optimizer.weight_decay", optimizer.weight_decay, {.min = 0});
}

void check_schedule(const ConfigReader& reader,
                    const LrScheduleOptions& schedule) {
  const bool is_wsd = schedule.decay == LrDecay::wsd;
  require<InvalidArgument>(is_wsd == (schedule.decay_steps > 0), [&] {
    return str(
        where_of_first(reader, {"schedule.decay_steps", "schedule.decay"}),
        ": schedule.decay_steps is ", schedule.decay_steps,
        is_wsd ? ", but schedule.decay is wsd; give the steps of its "
                 "decay, 1 or more."
               : ", which only schedule.decay = \"wsd\" has; give 0, "
                 "or that decay.");
  });
  const int64_t least = schedule.warmup_steps + schedule.decay_steps;
  require<InvalidArgument>(
      schedule.decay == LrDecay::constant || schedule.total_steps >= least,
      [&] {
        return str(
            where_of_first(reader, {"schedule.warmup_steps",
                                    "schedule.decay_steps", "train.steps"}),
            ": schedule.warmup_steps is ", schedule.warmup_steps,
            " and schedule.decay_steps ", schedule.decay_steps,
            ", which do not fit in train.steps, ", schedule.total_steps,
            "; give fewer of them, or more train.steps.");
      });
  validate(schedule);
}

void read_schedule(ConfigReader& reader, TrainConfig& config) {
  LrScheduleOptions& schedule = config.schedule;
  reader.get("schedule.decay", schedule.decay,
             {{"constant", LrDecay::constant},
              {"linear", LrDecay::linear},
              {"cosine", LrDecay::cosine},
              {"wsd", LrDecay::wsd}});
  reader.get("schedule.warmup_steps", schedule.warmup_steps, {.min = 0});
  reader.get("schedule.decay_steps", schedule.decay_steps, {.min = 0});
  reader.get("schedule.final_factor", schedule.final_factor,
             {.min = 0, .max = 1});
  schedule.total_steps = config.train.steps;
  check_schedule(reader, schedule);
}

void read_checkpoint(ConfigReader& reader, CheckpointConfig& checkpoint) {
  reader.get("checkpoint.enabled", checkpoint.enabled);
  reader.get("checkpoint.every", checkpoint.every, {.min = 0});
  reader.get("checkpoint.how", checkpoint.how,
             {{"async", SaveHow::async}, {"sync", SaveHow::sync}});
  reader.get("checkpoint.keep_latest", checkpoint.keep_latest, {.min = 0});
  reader.get("checkpoint.keep_every", checkpoint.keep_every, {.min = 0});
  reader.get("checkpoint.keep_best", checkpoint.keep_best);
}

void read_output(ConfigReader& reader, TrainConfig& config) {
  reader.get("evaluation.every", config.evaluation.every, {.min = 0});
  reader.get("evaluation.max_windows", config.evaluation.max_windows,
             {.min = 0});
  read_checkpoint(reader, config.checkpoint);
  reader.get("output.folder", config.output.folder);
  reader.get("output.print_every", config.output.print_every, {.min = 1});
  reader.get("output.tensorboard", config.output.tensorboard);
  reader.get("output.peak_tflops", config.output.peak_tflops, {.min = 0});
  read_distributed(reader, config.distributed);
}

void check_graph_keys(const ConfigReader& reader, const TrainConfig& config) {
  if (config.train.graph == GraphUse::off) return;
  require<InvalidArgument>(
      config.optimizer.kind == OptimizerKind::fused_adamw, [&] {
        return str(reader.where("train.graph"),
                   ": train.graph is set and optimizer.name is torch_adamw, "
                   "which counts its steps on the host, where a graph does not "
                   "come; use adamw.");
      });
  require<InvalidArgument>(config.shard.offload == Offload::none, [&] {
    return str(reader.where("train.graph"),
               ": train.graph is set and shard.offload too, but a graph has no "
               "work on the host; leave one of them out.");
  });
}

TrainConfig read(ConfigReader& reader) {
  TrainConfig config;
  reader.get("data.tokens", config.data.tokens);
  reader.get("data.held_out", config.data.held_out);
  reader.get("data.verify", config.data.verify);
  read_model(reader, config);
  read_train(reader, config.train);
  read_optimizer(reader, config.optimizer);
  read_schedule(reader, config);
  read_shard(reader, config.shard);
  read_output(reader, config);
  read_profile(reader, config.profile);
  check_graph_keys(reader, config);
  check_step_in_backward(reader, config);
  reader.finish();
  config.toml = reader.effective();
  return config;
}

}  // namespace

TrainConfig read_train_config(const std::string& path,
                              std::span<const std::string> overrides) {
  auto reader = ConfigReader::from_file(path, overrides);
  TrainConfig config = read(reader);
  reader.require_set("data.tokens", "the token file to train on");
  return config;
}

TrainConfig default_train_config(std::span<const std::string> overrides) {
  auto reader = ConfigReader::from_text("", "defaults", overrides);
  return read(reader);
}

}  // namespace tessera::train
