// The sentence that explains each key; docs/train.md has more.
#include <array>
#include <sstream>
#include <string>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/train/train_config.h"

namespace tessera::train {
namespace {

struct KeyDoc {
  std::string_view key;
  std::string_view text;
};

constexpr std::array kDocs = {
    KeyDoc{"data.tokens", "token file to train on; tessera prepare makes one"},
    KeyDoc{"data.held_out",
           "token file to measure on; \"\": the validation part of tokens"},
    KeyDoc{"data.verify", "compare the checksum of all tokens at the start"},
    KeyDoc{"model.preset", "a named model, which the keys below may change"},
    KeyDoc{"model.architecture", "llama or gpt2"},
    KeyDoc{"model.vocab", "different tokens; at least those of the data"},
    KeyDoc{"model.dim", "width of the residual stream"},
    KeyDoc{"model.layers", "blocks"},
    KeyDoc{"model.heads", "attention heads; divides dim"},
    KeyDoc{"model.kv_heads", "heads of keys and values; as heads unless set"},
    KeyDoc{"model.ffn", "width inside the feed-forward part"},
    KeyDoc{"model.seq", "tokens of a sequence, in training and generation"},
    KeyDoc{"model.rope_base", "of rotary positions (llama)"},
    KeyDoc{"model.norm_eps", "added inside each norm"},
    KeyDoc{"model.tied", "the head multiplies by the embedding's matrix"},
    KeyDoc{"model.kernels",
           "of norms, positions, SwiGLU and loss: plain (LibTorch's) or fused"},
    KeyDoc{"model.recompute",
           "in backward, to save memory: none, selective (norms and SwiGLU), "
           "offload (these, the rest to the host), but_attention or block"},
    KeyDoc{"model.selective_last",
           "so many of the last blocks are recomputed selectively"},
    KeyDoc{"model.offload_blocks",
           "so many of the others, spread, keep activations in host memory"},
    KeyDoc{"model.offload_gb_per_s",
           "of the link to it; how long a copy holds memory is reckoned by it"},
    KeyDoc{"model.dropout", "share of activations that training sets to zero"},
    KeyDoc{"model.init_std", "deviation of the first weights"},
    KeyDoc{"train.steps", "updates of the weights"},
    KeyDoc{"train.batch", "sequences of one forward of one rank"},
    KeyDoc{"train.tokens_per_step",
           "over all ranks; more than one forward holds is accumulated. 0: one "
           "forward of each rank"},
    KeyDoc{"train.seed", "of first weights and data order"},
    KeyDoc{"train.max_norm", "gradients are clipped to it; 0: they are not"},
    KeyDoc{"train.nonfinite",
           "what a loss of nan or infinity does: stop, or skip the step"},
    KeyDoc{"train.deterministic", "two runs give the same bits"},
    KeyDoc{"train.graph",
           "each step as one CUDA graph: off, on, or if_possible and else "
           "without"},
    KeyDoc{"train.step_in_backward",
           "units step while backward goes on; needs max_norm = 0"},
    KeyDoc{"optimizer.name", "adamw (fused) or torch_adamw"},
    KeyDoc{"optimizer.lr", "learning rate after the warm-up"},
    KeyDoc{"optimizer.beta1", "memory of the first moment"},
    KeyDoc{"optimizer.beta2", "memory of the second moment"},
    KeyDoc{"optimizer.eps", "added to the root of the second moment"},
    KeyDoc{"optimizer.weight_decay", "of matrices; norms and biases have none"},
    KeyDoc{"schedule.decay", "constant, linear, cosine or wsd"},
    KeyDoc{"schedule.warmup_steps", "until the rate has its peak"},
    KeyDoc{"schedule.decay_steps", "of wsd, at the end"},
    KeyDoc{"schedule.final_factor", "share of the peak at the end"},
    KeyDoc{"shard.strategy",
           "fully_shard, or replicate for models that fit on every rank"},
    KeyDoc{"shard.replicas",
           "copies of the sharded model (HSDP): on 2 hosts 2, say; divides "
           "the ranks"},
    KeyDoc{"shard.reshard",
           "free full parameters after forward: auto, always, never; or how "
           "many ranks keep them together"},
    KeyDoc{"shard.prefetch",
           "units whose gathers start ahead of their use; auto: 1 on a GPU, 0 "
           "on a CPU"},
    KeyDoc{"shard.backward_overlap",
           "tight: the end of backward has less of other units; full"},
    KeyDoc{"shard.param_dtype", "of compute and gathers: float32, bfloat16"},
    KeyDoc{"shard.reduce_dtype", "of gradient sums: float32, bfloat16"},
    KeyDoc{"shard.gather_dtype",
           "what travels in gathers: param_dtype, or float8 for matrices"},
    KeyDoc{"shard.gather_copy",
           "kept: shards in the param_dtype, too, so that gathers need not "
           "cast; none"},
    KeyDoc{"shard.offload",
           "shards, gradients and optimizer in host memory: off, pinned, "
           "pageable"},
    KeyDoc{"evaluation.every", "steps between evaluations; 0: at the end only"},
    KeyDoc{"evaluation.max_windows",
           "of the held-out text; 0: all. The last evaluation takes all"},
    KeyDoc{"checkpoint.enabled", "save the run's state, to go on from it"},
    KeyDoc{"checkpoint.every",
           "steps between checkpoints; 0: at the end only, and when asked to "
           "end"},
    KeyDoc{"checkpoint.how",
           "async: train on while files are written; sync: wait for them"},
    KeyDoc{"checkpoint.keep_latest", "checkpoints that stay; 0: all"},
    KeyDoc{"checkpoint.keep_every",
           "and those whose step it divides; 0: none such"},
    KeyDoc{"checkpoint.keep_best", "and the one of the best held-out loss"},
    KeyDoc{"output.folder", "for weights, checkpoints, metrics and curve"},
    KeyDoc{"output.print_every", "steps between progress lines"},
    KeyDoc{"output.tensorboard", "write TensorBoard events"},
    KeyDoc{"output.peak_tflops", "of one device, to print MFU; 0: not known"},
    KeyDoc{
        "profile.steps",
        "write a trace of these steps, \"10:13\", for each rank; \"\": none"},
    KeyDoc{"profile.memory",
           "and what the GPU's allocator did in them, for "
           "pytorch.org/memory_viz"},
    KeyDoc{"distributed.timeout_seconds",
           "a collective that takes longer ends the job; 0: 600 on NCCL, 1800 "
           "on Gloo"},
    KeyDoc{
        "distributed.transport",
        "of gathers and reduce-scatters between the GPUs of a machine: nccl, "
        "copy_engines, or auto: what TESSERA_TRANSPORT says, else nccl"},
    KeyDoc{"distributed.window_mib",
           "of copy_engines: memory of a GPU that the others copy from, for "
           "each of two kinds of calls; auto: TESSERA_WINDOW_MIB, else 64"},
};

std::string_view doc_of(std::string_view key) {
  for (const KeyDoc& doc : kDocs) {
    if (doc.key == key) return doc.text;
  }
  throw InvalidState(str("explain_keys: '", key, "' has no explanation."));
}

}  // namespace

std::string explain_keys(const std::string& toml) {
  std::istringstream lines(toml);
  std::string result, table, line;
  while (std::getline(lines, line)) {
    const size_t equals = line.find(" = ");
    if (line.starts_with('[')) {
      table = line.substr(1, line.find(']') - 1) + ".";
    } else if (equals != std::string::npos) {
      result += str("# ", doc_of(table + line.substr(0, equals)), "\n");
    }
    result += line + "\n";
  }
  return result;
}

}  // namespace tessera::train
