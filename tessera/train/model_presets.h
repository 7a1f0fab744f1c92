// The shapes of the trainer's models, and the presets with a name.
//
//   ModelConfig model = model_preset("124m").model;
//   model.vocab = tokens.vocab();
//   num_parameters(model);
//
// Torch-free. tiny, 124m, 350m, 1b, 3b and 8b are the models of
// benchmarks/peer/fsdp2_bench.py, so that `plan`, `train` and the benchmarks
// speak of the same ones.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tessera::train {

enum class Architecture { llama, gpt2 };

/// Whose norms, rotary positions, SwiGLU and loss: LibTorch's operators, or the
/// functions of tessera/kernels, which a GPU computes in one kernel each. GPT-2
/// has none of these and computes alike.
enum class ModelKernels { plain, fused };

/// What of a block's activations backward computes again instead of keeping.
enum class RecomputePolicy {
  none,
  selective,      // outputs of norms and SwiGLU: little time
  offload,        // as selective, and the rest of these in host memory
  but_attention,  // all but a block's input and its attention's output
  block           // all but a block's input
};

/// The defaults are a Llama-type model of bytes that a laptop trains.
struct ModelConfig {
  Architecture architecture = Architecture::llama;
  int64_t vocab = 256;  // different tokens
  int64_t dim = 128;    // width of the residual stream
  int64_t layers = 3;
  int64_t heads = 4;     // dim / heads is the width of a head
  int64_t kv_heads = 4;  // llama; fewer than heads: groups share keys, values
  int64_t ffn = 352;     // width inside the feed-forward part
  int64_t seq = 128;     // the longest sequence
  double rope_base = 10000.0;  // llama
  double norm_eps = 1e-5;
  bool tied = false;  // the head multiplies by the embedding's own matrix
  ModelKernels kernels = ModelKernels::plain;
  RecomputePolicy recompute = RecomputePolicy::none;  // llama
  // The last blocks, whose backward comes first, when few gradients take memory
  // yet: selective instead of what `recompute` says.
  int64_t selective_last = 0;
  // So many of the others, spread over them: offload.
  int64_t offload_blocks = 0;
  double offload_gb_per_s = 49;  // of the link to the host: an H200's PCIe 5
  // In training, of the embedding and of what each half of a block adds.
  double dropout = 0;

  bool operator==(const ModelConfig&) const = default;
};

struct ModelPreset {
  std::string_view name;
  ModelConfig model;
  int64_t batch;  // sequences of one forward of one rank, as benchmarks use it
};

/// Smallest first, Llama-type models before GPT-2.
[[nodiscard]] std::span<const ModelPreset> model_presets();

/// Errors: InvalidArgument for a name that no preset has, with the nearest.
[[nodiscard]] const ModelPreset& model_preset(std::string_view name);

/// "llama"; "gpt2".
[[nodiscard]] std::string_view name_of(Architecture architecture);

/// Errors: InvalidArgument for a size below 1, heads that do not divide dim,
/// kv_heads that do not divide heads (GPT-2: that are not heads), heads of odd
/// width (Llama), norm_eps or rope_base that is not above 0, dropout outside
/// [0, 1); a selective_last above layers, or without a heavier policy; more
/// offload_blocks than it leaves.
void validate(const ModelConfig& model);

/// Of the block with this index.
[[nodiscard]] RecomputePolicy recompute_of(const ModelConfig& model,
                                           int64_t block);

/// RecomputePolicy::offload: during so many blocks of forward the link to the
/// host copies what one block keeps, in bf16 on a GPU whose forward makes 600
/// TFLOP/s, as an H200.
[[nodiscard]] double blocks_of_a_copy(const ModelConfig& model);

/// A matrix that embedding and head share counts once.
[[nodiscard]] int64_t num_parameters(const ModelConfig& model);

/// Forward and backward: 6 for each parameter that multiplies (not those that
/// are only looked up), and 6 * layers * dim * seq for causal attention. What a
/// recompute does again does not count.
[[nodiscard]] double flops_per_token(const ModelConfig& model);

}  // namespace tessera::train
