#include "tessera/train/model_presets.h"

#include <algorithm>
#include <array>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/nearest_name.h"

namespace tessera::train {
namespace {

constexpr ModelConfig llama(int64_t dim, int64_t layers, int64_t heads,
                            int64_t kv_heads, int64_t ffn, int64_t vocab,
                            int64_t seq) {
  return {.architecture = Architecture::llama,
          .vocab = vocab,
          .dim = dim,
          .layers = layers,
          .heads = heads,
          .kv_heads = kv_heads,
          .ffn = ffn,
          .seq = seq,
          .rope_base = 500000.0};
}

constexpr ModelConfig gpt2(int64_t dim, int64_t layers, int64_t heads) {
  return {.architecture = Architecture::gpt2,
          .vocab = 50257,
          .dim = dim,
          .layers = layers,
          .heads = heads,
          .kv_heads = heads,
          .ffn = 4 * dim,
          .seq = 1024,
          .tied = true};
}

//                                dim layers heads kv    ffn   vocab   seq
constexpr std::array kPresets = {
    ModelPreset{"1m", llama(128, 5, 4, 4, 352, 256, 256), 8},
    ModelPreset{"tiny", llama(256, 4, 4, 4, 688, 4096, 256), 4},
    ModelPreset{"10m", llama(320, 8, 5, 5, 864, 256, 512), 8},
    ModelPreset{"124m", llama(768, 12, 12, 12, 2048, 32000, 1024), 8},
    ModelPreset{"350m", llama(1024, 24, 16, 16, 2816, 32000, 2048), 4},
    ModelPreset{"1b", llama(2048, 16, 32, 8, 8192, 32000, 4096), 2},
    ModelPreset{"3b", llama(3072, 28, 24, 8, 8192, 32000, 4096), 2},
    ModelPreset{"8b", llama(4096, 32, 32, 8, 14336, 128256, 4096), 1},
    ModelPreset{"70b", llama(8192, 80, 64, 8, 28672, 128256, 4096), 1},
    ModelPreset{"gpt2-124m", gpt2(768, 12, 12), 8},
    ModelPreset{"gpt2-355m", gpt2(1024, 24, 16), 4},
    ModelPreset{"gpt2-774m", gpt2(1280, 36, 20), 4},
    ModelPreset{"gpt2-1.5b", gpt2(1600, 48, 25), 2},
};

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const ModelPreset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

std::string no_such_preset(std::string_view name) {
  const auto names = preset_names();
  const std::string nearest = nearest_name(name, names);
  std::string all;
  for (const std::string& each : names) all += (all.empty() ? "" : ", ") + each;
  return str("there is no model preset '", name, "'",
             nearest.empty() ? "" : "; did you mean '" + nearest + "'?",
             nearest.empty() ? "; there are " : " There are ", all, ".");
}

void require_positive(std::string_view key, int64_t value) {
  require<InvalidArgument>(value >= 1, [&] {
    return str("model.", key, " is ", value, "; give 1 or more.");
  });
}

void require_positive(std::string_view key, double value) {
  require<InvalidArgument>(value > 0, [&] {
    return str("model.", key, " is ", value, "; give more than 0.");
  });
}

void require_divides(std::string_view part_key, int64_t part,
                     std::string_view whole_key, int64_t whole) {
  require<InvalidArgument>(whole % part == 0, [&] {
    return str("model.", part_key, " is ", part, " and model.", whole_key,
               " is ", whole, "; give a ", part_key, " that divides ",
               whole_key, ".");
  });
}

int64_t num_block_parameters(const ModelConfig& m) {
  if (m.architecture == Architecture::gpt2) {
    const int64_t weights = 4 * m.dim * m.dim + 2 * m.dim * m.ffn;
    const int64_t biases = 3 * m.dim + m.dim + m.ffn + m.dim;
    return weights + biases + 4 * m.dim;  // two norms, weight and bias
  }
  const int64_t kv_dim = m.dim / m.heads * m.kv_heads;
  return 2 * m.dim * m.dim + 2 * m.dim * kv_dim + 3 * m.dim * m.ffn + 2 * m.dim;
}

/// Matrices that are looked up, and do not multiply as the head does.
int64_t num_lookup_parameters(const ModelConfig& m) {
  const int64_t positions =
      m.architecture == Architecture::gpt2 ? m.seq * m.dim : 0;
  return positions + (m.tied ? 0 : m.vocab * m.dim);
}

}  // namespace

std::span<const ModelPreset> model_presets() { return kPresets; }

const ModelPreset& model_preset(std::string_view name) {
  const auto found = std::ranges::find(kPresets, name, &ModelPreset::name);
  require<InvalidArgument>(found != kPresets.end(),
                           [&] { return no_such_preset(name); });
  return *found;
}

std::string_view name_of(Architecture architecture) {
  return architecture == Architecture::gpt2 ? "gpt2" : "llama";
}

bool is_heavier_than_selective(RecomputePolicy policy) {
  return policy != RecomputePolicy::none &&
         policy != RecomputePolicy::selective;
}

void require_selective_last(const ModelConfig& m) {
  if (m.selective_last == 0) return;
  require<InvalidArgument>(
      m.selective_last >= 0 && m.selective_last <= m.layers &&
          is_heavier_than_selective(m.recompute),
      [&] {
        return str("model.selective_last is ", m.selective_last,
                   "; give 0 to model.layers (", m.layers,
                   "), and model.recompute = \"but_attention\", \"block\" or "
                   "\"offload\" for the blocks before.");
      });
}

void require_offload_blocks(const ModelConfig& m) {
  require_positive("offload_gb_per_s", m.offload_gb_per_s);
  const int64_t others = m.layers - m.selective_last;
  require<InvalidArgument>(
      m.offload_blocks >= 0 && m.offload_blocks <= others, [&] {
        return str("model.offload_blocks is ", m.offload_blocks, "; give 0 to ",
                   others, ", the blocks that model.selective_last leaves.");
      });
}

/// The first seventh is spared: what comes back for them would meet nearly all
/// gradients. The first of each stretch is taken, so that the rest of forward
/// is there for its copy.
bool is_offloaded(const ModelConfig& m, int64_t block) {
  const int64_t others = m.layers - m.selective_last;
  const int64_t first = std::min(m.layers / 7, others - m.offload_blocks);
  if (block < first || block >= others) return false;
  const auto before = [&](int64_t end) {
    const int64_t stretches = (end - first) * m.offload_blocks;
    return (stretches + others - first - 1) / (others - first);
  };
  return before(block + 1) > before(block);
}

void validate(const ModelConfig& m) {
  require_positive("vocab", m.vocab);
  require_positive("dim", m.dim);
  require_positive("layers", m.layers);
  require_positive("heads", m.heads);
  require_positive("kv_heads", m.kv_heads);
  require_positive("ffn", m.ffn);
  require_positive("seq", m.seq);
  require_positive("norm_eps", m.norm_eps);
  require<InvalidArgument>(m.dropout >= 0 && m.dropout < 1, [&] {
    return str("model.dropout is ", m.dropout,
               "; give 0 or more, and less than 1.");
  });
  require_divides("heads", m.heads, "dim", m.dim);
  require_selective_last(m);
  require_offload_blocks(m);
  if (m.architecture == Architecture::gpt2) {
    require<InvalidArgument>(m.kv_heads == m.heads, [&] {
      return str("model.kv_heads is ", m.kv_heads, " and model.heads is ",
                 m.heads, "; a GPT-2 model has as many of both.");
    });
    require<InvalidArgument>(m.recompute == RecomputePolicy::none, [] {
      return str(
          "model.recompute is for Llama-type models: a GPT-2 model keeps all "
          "activations; give \"none\".");
    });
    require<InvalidArgument>(m.offload_blocks == 0, [] {
      return str(
          "model.offload_blocks is for Llama-type models: a GPT-2 model keeps "
          "all activations; give 0.");
    });
    return;
  }
  require_positive("rope_base", m.rope_base);
  require_divides("kv_heads", m.kv_heads, "heads", m.heads);
  require<InvalidArgument>(m.dim / m.heads % 2 == 0, [&] {
    return str("model.dim / model.heads is ", m.dim / m.heads,
               "; the halves of a head turn together, so give an even width.");
  });
}

RecomputePolicy recompute_of(const ModelConfig& m, int64_t block) {
  if (block >= m.layers - m.selective_last) return RecomputePolicy::selective;
  return is_offloaded(m, block) ? RecomputePolicy::offload : m.recompute;
}

double blocks_of_a_copy(const ModelConfig& m) {
  constexpr double kFlops = 600e12;
  const double link = m.offload_gb_per_s * 1e9;
  const int64_t kv_dim = m.dim / m.heads * m.kv_heads;
  const auto bytes = static_cast<double>(2 * 2 * (m.dim + kv_dim + m.ffn));
  const auto flops =
      static_cast<double>(2 * num_block_parameters(m) + 2 * m.dim * m.seq);
  return bytes / link / (flops / kFlops);
}

int64_t num_parameters(const ModelConfig& m) {
  const bool gpt2 = m.architecture == Architecture::gpt2;
  const int64_t final_norm = gpt2 ? 2 * m.dim : m.dim;
  const int64_t positions = gpt2 ? m.seq * m.dim : 0;
  const int64_t matrices = m.tied ? 1 : 2;
  return matrices * m.vocab * m.dim + positions +
         m.layers * num_block_parameters(m) + final_norm;
}

double flops_per_token(const ModelConfig& m) {
  const int64_t multiply = num_parameters(m) - num_lookup_parameters(m);
  return 6.0 * static_cast<double>(multiply) +
         6.0 * static_cast<double>(m.layers * m.dim * m.seq);
}

}  // namespace tessera::train
