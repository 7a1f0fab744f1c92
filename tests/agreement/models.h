// Small models, each with one awkward thing, written with plain torch::nn.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace agreement {

namespace nn = torch::nn;
using torch::Tensor;

/// A model that maps tokens [batch, seq] to logits [batch, seq, kVocab].
struct Model : nn::Module {
  virtual Tensor forward(Tensor tokens) = 0;
  /// The mean loss of these targets, [batch, seq].
  virtual Tensor loss(const Tensor& tokens, const Tensor& targets);
  /// The modules to be sharded before the root, bottom-up.
  virtual std::vector<nn::Module*> units() = 0;
  /// Called when backward reaches a block, in models that say so.
  std::function<void()> on_block_backward;

 protected:
  void watch(const Tensor& block_output) const {
    if (!on_block_backward || !block_output.requires_grad()) return;
    block_output.register_hook(
        [notify = on_block_backward](const Tensor&) { notify(); });
  }
};

inline constexpr int64_t kVocab = 53;  // prime: no world size divides it
inline constexpr int64_t kSeq = 7;

inline Tensor Model::loss(const Tensor& tokens, const Tensor& targets) {
  return nn::functional::cross_entropy(
      forward(tokens).reshape({-1, kVocab}).to(torch::kFloat),
      targets.reshape({-1}));
}

struct MlpBlockImpl : nn::Module {
  nn::LayerNorm norm;
  nn::Linear up, down;
  MlpBlockImpl(int64_t dim, int64_t hidden)
      : norm(nn::LayerNormOptions({dim})), up(dim, hidden), down(hidden, dim) {
    register_module("norm", norm);
    register_module("up", up);
    register_module("down", down);
  }
  Tensor forward(Tensor x) { return x + down(torch::gelu(up(norm(x)))); }
};
TORCH_MODULE(MlpBlock);

/// Embedding, blocks, norm, head: everything trained.
struct Plain : Model {
  nn::Embedding embed;
  nn::ModuleList blocks;
  nn::LayerNorm norm;
  nn::Linear head;
  explicit Plain(int64_t dim = 12, int64_t hidden = 29, int num_blocks = 3)
      : embed(kVocab, dim),
        norm(nn::LayerNormOptions({dim})),
        head(nn::LinearOptions(dim, kVocab).bias(false)) {
    register_module("embed", embed);
    register_module("blocks", blocks);
    register_module("norm", norm);
    register_module("head", head);
    for (int i = 0; i < num_blocks; ++i) {
      blocks->push_back(MlpBlock(dim, hidden));
    }
  }
  Tensor forward(Tensor tokens) override {
    Tensor x = embed(tokens);
    for (const auto& block : *blocks) {
      x = block->as<MlpBlockImpl>()->forward(x);
    }
    return head(norm(x));
  }
  std::vector<nn::Module*> units() override {
    std::vector<nn::Module*> found;
    for (const auto& block : *blocks) found.push_back(block.get());
    return found;
  }
};

/// Dims of 1, 3 and 5: shards of one row, empty shards, rows that no alignment
/// fits.
struct Tiny : Plain {
  Tiny() : Plain(3, 5, 2) {}
};

struct TiedHeadImpl : nn::Module {
  Tensor weight;
  explicit TiedHeadImpl(const Tensor& tied) {
    weight = register_parameter("weight", tied);
  }
  Tensor forward(Tensor x) { return torch::matmul(x, weight.t()); }
};
TORCH_MODULE(TiedHead);

/// Embedding and head are one weight, inside one unit (the root's).
struct TiedInOneUnit : Plain {
  TiedHead tied_head;
  TiedInOneUnit() : tied_head(embed->weight) {
    register_module("tied_head", tied_head);
  }
  Tensor forward(Tensor tokens) override {
    Tensor x = embed(tokens);
    for (const auto& block : *blocks) {
      x = block->as<MlpBlockImpl>()->forward(x);
    }
    const Tensor h = norm(x);
    const Tensor own = head(h);
    return tied_head(h) + own;
  }
};

/// Embedding and head are one weight, and the embedding is a unit of its own.
struct TiedAcrossUnits : TiedInOneUnit {
  std::vector<nn::Module*> units() override {
    auto found = Plain::units();
    found.insert(found.begin(), embed.get());
    return found;
  }
};

/// Tied as LibTorch users often do: the head's own weight stays registered, and
/// is never used.
struct TiedByMember : Plain {
  TiedByMember() { head->weight = embed->weight; }
};

/// The second block and the embedding do not train.
struct Frozen : Plain {
  Frozen() {
    for (auto& p : blocks->ptr(1)->parameters()) p.requires_grad_(false);
    embed->weight.requires_grad_(false);
    blocks->ptr(0)->as<MlpBlockImpl>()->up->weight.requires_grad_(false);
  }
};

/// Registers layers that forward never uses, one in a unit and a whole unit.
struct Unused : Plain {
  nn::Linear spare;
  nn::Linear spare_unit;
  Unused() : spare(4, 9), spare_unit(3, 3) {
    blocks->ptr(0)->register_module("spare", spare);
    register_module("spare_unit", spare_unit);
  }
  std::vector<nn::Module*> units() override {
    auto found = Plain::units();
    found.push_back(spare_unit.get());
    return found;
  }
};

struct LoraLinearImpl : nn::Module {
  nn::Linear base, a, b;
  LoraLinearImpl(int64_t in, int64_t out, int64_t rank)
      : base(in, out),
        a(nn::LinearOptions(in, rank).bias(false)),
        b(nn::LinearOptions(rank, out).bias(false)) {
    register_module("base", base);
    register_module("a", a);
    register_module("b", b);
    for (auto& p : base->parameters()) p.requires_grad_(false);
  }
  Tensor forward(Tensor x) { return base(x) + b(a(x)); }
};
TORCH_MODULE(LoraLinear);

struct LoraBlockImpl : nn::Module {
  LoraLinear up, down;
  LoraBlockImpl(int64_t dim, int64_t hidden)
      : up(dim, hidden, 2), down(hidden, dim, 2) {
    register_module("up", up);
    register_module("down", down);
  }
  Tensor forward(Tensor x) { return x + down(torch::tanh(up(x))); }
};
TORCH_MODULE(LoraBlock);

/// A frozen base with small trained adapters in each block.
struct Lora : Model {
  nn::Embedding embed;
  nn::ModuleList blocks;
  nn::Linear head;
  explicit Lora(int num_blocks = 5) : embed(kVocab, 8), head(8, kVocab) {
    register_module("embed", embed);
    register_module("blocks", blocks);
    register_module("head", head);
    for (int i = 0; i < num_blocks; ++i) blocks->push_back(LoraBlock(8, 24));
    embed->weight.requires_grad_(false);
    for (auto& p : head->parameters()) p.requires_grad_(false);
  }
  Tensor forward(Tensor tokens) override {
    Tensor x = embed(tokens);
    for (const auto& block : *blocks) {
      x = block->as<LoraBlockImpl>()->forward(x);
      watch(x);
    }
    return head(x);
  }
  std::vector<nn::Module*> units() override {
    std::vector<nn::Module*> found;
    for (const auto& block : *blocks) found.push_back(block.get());
    return found;
  }
};

struct NamedModel {
  std::string name;
  std::function<std::shared_ptr<Model>()> make;
};

template <class M>
NamedModel named(const std::string& name) {
  return {name, [] { return std::make_shared<M>(); }};
}

inline std::vector<NamedModel> all_models() {
  return {named<Plain>("plain"),
          named<Tiny>("tiny"),
          named<TiedInOneUnit>("tied_in_one_unit"),
          named<TiedAcrossUnits>("tied_across_units"),
          named<TiedByMember>("tied_by_member"),
          named<Frozen>("frozen"),
          named<Unused>("unused"),
          named<Lora>("lora")};
}

}  // namespace agreement
