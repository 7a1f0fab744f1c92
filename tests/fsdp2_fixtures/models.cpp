#include "tests/fsdp2_fixtures/models.h"

#include <stdexcept>

namespace fsdp2_fixtures {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

namespace {

nn::Linear linear(int64_t in, int64_t out) {
  return nn::Linear(nn::LinearOptions(in, out).bias(false));
}

struct Mlp : Model {
  nn::Linear l0, l1, l2, l3;
  Mlp() : l0(7, 5), l1(5, 3), l2(3, 5), l3(5, 1) {
    register_module("l0", l0);
    register_module("l1", l1);
    register_module("l2", l2);
    register_module("l3", l3);
  }
  Tensor loss(const Fixture& fixture, int64_t step, int64_t first,
              int64_t count) override {
    Tensor x = fixture.batch(step, "x", first, count);
    x = torch::relu(l1(torch::relu(l0(x))));
    x = l3(torch::relu(l2(x)));
    return F::mse_loss(x.to(torch::kFloat),
                       fixture.batch(step, "y", first, count));
  }
};

/// Language models: tokens to logits, next-token cross-entropy.
struct LanguageModel : Model {
  virtual Tensor forward(Tensor tokens) = 0;
  Tensor loss(const Fixture& fixture, int64_t step, int64_t first,
              int64_t count) override {
    const Tensor tokens = fixture.batch(step, "tokens", first, count);
    const int64_t seq = tokens.size(1) - 1;
    const Tensor logits = forward(tokens.narrow(1, 0, seq));
    return F::cross_entropy(logits.to(torch::kFloat).flatten(0, 1),
                            tokens.narrow(1, 1, seq).flatten());
  }
};

/// head(norm(e + mid(e))), e = embed(tokens); the head is the embedding matrix.
struct TiedLm : LanguageModel {
  nn::Embedding embed;
  nn::Linear mid;
  nn::LayerNorm norm;
  TiedLm()
      : embed(13, 6), mid(6, 6), norm(nn::LayerNormOptions({6})) {
    register_module("embed", embed);
    register_module("mid", mid);
    register_module("norm", norm);
  }
  Tensor forward(Tensor tokens) override {
    const Tensor e = embed(tokens);
    // As in Python; nn::Linear rounds before it adds the bias to a 3-D input.
    const Tensor m = torch::linear(e, mid->weight, mid->bias);
    return torch::linear(norm(e + m), embed->weight);
  }
};

struct RmsNormImpl : nn::Module {
  Tensor weight;
  explicit RmsNormImpl(int64_t dim) {
    weight = register_parameter("weight", torch::ones({dim}));
  }
  Tensor forward(Tensor x) {
    return at::rms_norm(x, weight.sizes(), weight, 1e-5);
  }
};
TORCH_MODULE(RmsNorm);

Tensor rotate(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  const auto halves = x.chunk(2, -1);
  return x * cos + torch::cat({-halves[1], halves[0]}, -1) * sin;
}

constexpr int64_t kDim = 32, kHeads = 4, kKv = 2, kFfn = 26, kVocab = 22,
                  kSeq = 8, kHead = kDim / kHeads;

struct BlockImpl : nn::Module {
  RmsNorm input_layernorm{kDim}, post_attention_layernorm{kDim};
  nn::Linear q_proj = linear(kDim, kHeads * kHead);
  nn::Linear k_proj = linear(kDim, kKv * kHead);
  nn::Linear v_proj = linear(kDim, kKv * kHead);
  nn::Linear o_proj = linear(kHeads * kHead, kDim);
  nn::Linear gate_proj = linear(kDim, kFfn);
  nn::Linear up_proj = linear(kDim, kFfn);
  nn::Linear down_proj = linear(kFfn, kDim);
  BlockImpl() {
    register_module("input_layernorm", input_layernorm);
    register_module("q_proj", q_proj);
    register_module("k_proj", k_proj);
    register_module("v_proj", v_proj);
    register_module("o_proj", o_proj);
    register_module("post_attention_layernorm", post_attention_layernorm);
    register_module("gate_proj", gate_proj);
    register_module("up_proj", up_proj);
    register_module("down_proj", down_proj);
  }
  Tensor heads(nn::Linear& projection, const Tensor& x, int64_t num_heads) {
    return projection(x)
        .view({x.size(0), x.size(1), num_heads, kHead})
        .transpose(1, 2);
  }
  Tensor forward(Tensor x, const Tensor& cos, const Tensor& sin) {
    Tensor h = input_layernorm(x);
    const Tensor q = rotate(heads(q_proj, h, kHeads), cos, sin);
    const Tensor k = rotate(heads(k_proj, h, kKv), cos, sin);
    const Tensor v = heads(v_proj, h, kKv);
    const Tensor a = at::scaled_dot_product_attention(
        q, k, v, {}, 0.0, /*is_causal=*/true, std::nullopt,
        /*enable_gqa=*/true);
    x = x + o_proj(a.transpose(1, 2).reshape(x.sizes()));
    h = post_attention_layernorm(x);
    return x + down_proj(torch::silu(gate_proj(h)) * up_proj(h));
  }
};
TORCH_MODULE(Block);

struct Llama : LanguageModel {
  nn::Embedding embed_tokens{kVocab, kDim};
  nn::ModuleList layers;
  RmsNorm norm{kDim};
  nn::Linear lm_head = linear(kDim, kVocab);
  Tensor cos, sin;
  Llama() {
    register_module("embed_tokens", embed_tokens);
    register_module("layers", layers);
    register_module("norm", norm);
    register_module("lm_head", lm_head);
    for (int i = 0; i < 2; ++i) layers->push_back(Block());
    const Tensor inverse =
        1.0 / torch::pow(500000.0, torch::arange(0, kHead, 2) / double(kHead));
    Tensor t = torch::outer(torch::arange(kSeq).to(torch::kFloat),
                            inverse.to(torch::kFloat));
    t = torch::cat({t, t}, -1);
    cos = register_buffer("cos", t.cos());
    sin = register_buffer("sin", t.sin());
  }
  Tensor forward(Tensor tokens) override {
    Tensor x = embed_tokens(tokens);
    const auto like = [&](const Tensor& table) {
      return table.narrow(0, 0, tokens.size(1)).to(x.dtype());
    };
    const Tensor c = like(cos);
    const Tensor s = like(sin);
    for (const auto& layer : *layers) {
      x = layer->as<BlockImpl>()->forward(x, c, s);
    }
    return lm_head(norm(x));
  }
};

std::shared_ptr<Model> make(const std::string& name) {
  if (name == "mlp") return std::make_shared<Mlp>();
  if (name == "tied_lm") return std::make_shared<TiedLm>();
  return std::make_shared<Llama>();
}

}  // namespace

std::shared_ptr<Model> make_model(const Fixture& fixture) {
  auto model = make(fixture.model());
  torch::NoGradGuard no_grad;
  const Tensors weights = fixture.initial_weights();
  for (auto& item : model->named_parameters()) {
    item.value().copy_(weights.at(item.key()));
  }
  return model;
}

torch::nn::Module& submodule(Model& model, const std::string& name) {
  if (name.empty()) return model;
  for (const auto& item : model.named_modules()) {
    if (item.key() == name) return *item.value();
  }
  throw std::out_of_range("no module " + name);
}

}  // namespace fsdp2_fixtures
