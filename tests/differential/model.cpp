#include "tests/differential/model.h"

#include <torch/nn/modules.h>

#include "tessera/module/recompute.h"
#include "tessera/module/traversal.h"
#include "tessera/shard/call.h"

namespace differential {

namespace nn = torch::nn;
using torch::Tensor;

namespace {

struct Linear : Node {
  nn::Linear m = nullptr;
  explicit Linear(const Json& node) {
    m = register_module(
        "m",
        nn::Linear(
            nn::LinearOptions(node["in"], node["out"]).bias(node["bias"])));
  }
  // nn::Linear rounds before it adds the bias to a 3-D input; Python does not.
  Tensor forward(const Tensor& x) override {
    return torch::linear(x, m->weight, m->bias);
  }
};

struct Embedding : Node {
  nn::Embedding m = nullptr;
  explicit Embedding(const Json& node) {
    m = register_module(
        "m", nn::Embedding(int64_t(node["vocab"]), int64_t(node["dim"])));
  }
  Tensor forward(const Tensor& x) override { return m(x); }
};

struct LayerNorm : Node {
  nn::LayerNorm m = nullptr;
  explicit LayerNorm(const Json& node) {
    m = register_module(
        "m", nn::LayerNorm(nn::LayerNormOptions({int64_t(node["dim"])})));
  }
  Tensor forward(const Tensor& x) override { return m(x); }
};

struct RmsNorm : Node {
  Tensor weight;
  explicit RmsNorm(const Json& node) {
    weight = register_parameter("weight", torch::empty({int64_t(node["dim"])}));
  }
  Tensor forward(const Tensor& x) override {
    return x * torch::rsqrt(x.pow(2).mean(-1, true) + 1e-3) * weight;
  }
};

struct Scale : Node {
  Tensor weight, shift;
  explicit Scale(const Json& node) {
    const int64_t dim = node["dim"];
    weight = register_parameter("weight", torch::empty({dim}));
    shift = register_parameter("shift", torch::empty({dim}));
  }
  Tensor forward(const Tensor& x) override { return x * weight + shift; }
};

struct Conv1d : Node {
  nn::Conv1d m = nullptr;
  explicit Conv1d(const Json& node) {
    const int64_t kernel = node["kernel"];
    m = register_module(
        "m", nn::Conv1d(nn::Conv1dOptions(node["in"], node["out"], kernel)
                            .padding(kernel / 2)
                            .bias(node["bias"])));
  }
  Tensor forward(const Tensor& x) override {
    return m(x.transpose(1, 2)).transpose(1, 2);
  }
};

struct Conv2d : Node {
  nn::Conv2d m = nullptr;
  explicit Conv2d(const Json& node) {
    const int64_t kernel = node["kernel"];
    m = register_module(
        "m", nn::Conv2d(nn::Conv2dOptions(1, node["channels"], kernel)
                            .padding(kernel / 2)
                            .bias(node["bias"])));
  }
  Tensor forward(const Tensor& x) override { return m(x.unsqueeze(1)).sum(1); }
};

nn::Linear plain_linear(int64_t in, int64_t out) {
  return nn::Linear(nn::LinearOptions(in, out).bias(false));
}

struct Attention : Node {
  nn::Linear q = nullptr, k = nullptr, v = nullptr, o = nullptr;
  int64_t heads;
  explicit Attention(const Json& node) : heads(node["heads"]) {
    const int64_t dim = node["dim"];
    q = register_module("q", plain_linear(dim, dim));
    k = register_module("k", plain_linear(dim, dim));
    v = register_module("v", plain_linear(dim, dim));
    o = register_module("o", plain_linear(dim, dim));
  }
  Tensor split(const Tensor& x) const {
    return x.view({x.size(0), x.size(1), heads, -1}).transpose(1, 2);
  }
  Tensor forward(const Tensor& x) override {
    const Tensor queries = split(q(x)), keys = split(k(x)),
                 values = split(v(x));
    const Tensor scores =
        torch::matmul(queries, keys.transpose(2, 3)) / double(x.size(2));
    const Tensor mixed = torch::matmul(torch::softmax(scores, -1), values);
    return o(mixed.transpose(1, 2).reshape(x.sizes()));
  }
};

struct SwiGlu : Node {
  nn::Linear gate = nullptr, up = nullptr, down = nullptr;
  explicit SwiGlu(const Json& node) {
    const int64_t dim = node["dim"], hidden = node["hidden"];
    gate = register_module("gate", plain_linear(dim, hidden));
    up = register_module("up", plain_linear(dim, hidden));
    down = register_module("down", plain_linear(hidden, dim));
  }
  Tensor forward(const Tensor& x) override {
    return down(torch::silu(gate(x)) * up(x));
  }
};

struct Activation : Node {
  std::string name;
  explicit Activation(const Json& node) : name(node["name"]) {}
  Tensor forward(const Tensor& x) override {
    if (name == "gelu") return torch::gelu(x);
    if (name == "silu") return torch::silu(x);
    return name == "tanh" ? torch::tanh(x) : torch::relu(x);
  }
};

struct Block : Node {
  nn::ModuleList list;
  std::vector<std::shared_ptr<Node>> nodes;
  std::string style;
  bool recomputed;

  Block(const Json& node, Recompute recompute)
      : style(node["style"]),
        recomputed(recompute == Recompute::as_the_case_says &&
                   node["recompute"]) {
    register_module("list", list);
    for (const Json& one : node["nodes"]) {
      nodes.push_back(make_node(one, recompute));
      list->push_back(nodes.back());
    }
  }
  Tensor forward(const Tensor& x) override {
    if (!recomputed) return styled(x);
    return tessera::recompute([this](const Tensor& in) { return styled(in); },
                              x);
  }
  Tensor sequence(Tensor x) {
    for (const auto& node : nodes) x = tessera::call(node, x);
    return x;
  }
  Tensor sum(const Tensor& x) {
    Tensor total = tessera::call(nodes[0], x);
    for (size_t i = 1; i < nodes.size(); ++i) {
      total = total + tessera::call(nodes[i], x);
    }
    return total;
  }
  Tensor first(const Tensor& x) {
    const Tensor used = tessera::call(nodes[0], x);
    for (size_t i = 1; style == "side" && i < nodes.size(); ++i) {
      const Tensor unused = tessera::call(nodes[i], x);
    }
    return used;
  }
  Tensor styled(const Tensor& x) {
    if (style == "sequence") return sequence(x);
    if (style == "residual") return x + sequence(x);
    if (style == "twice") return sequence(sequence(x));
    return style == "sum" ? sum(x) : first(x);
  }
};

template <class T>
std::shared_ptr<Node> leaf(const Json& node) {
  return std::make_shared<T>(node);
}

/// A module's member for the parameter `key`, which its dictionary does not
/// know of.
void set_member(nn::Module& module, const Tensor& weight) {
  if (auto* linear = dynamic_cast<nn::LinearImpl*>(&module)) {
    linear->weight = weight;
  } else {
    dynamic_cast<nn::EmbeddingImpl&>(module).weight = weight;
  }
}

void share_parameter(nn::Module& model, const std::string& first,
                     const std::string& second) {
  const auto [owner, key] = split_name(first);
  const Tensor weight = tessera::entry({&module_named(model, owner), key});
  const auto [other_owner, other_key] = split_name(second);
  nn::Module& other = module_named(model, other_owner);
  tessera::set_entry({&other, other_key}, weight);
  set_member(other, weight);
}

}  // namespace

std::shared_ptr<Node> make_node(const Json& node, Recompute recompute) {
  static const std::map<std::string, std::shared_ptr<Node> (*)(const Json&)>
      kLeaves{
          {"linear", leaf<Linear>},        {"embedding", leaf<Embedding>},
          {"layer_norm", leaf<LayerNorm>}, {"rms_norm", leaf<RmsNorm>},
          {"scale", leaf<Scale>},          {"conv1d", leaf<Conv1d>},
          {"conv2d", leaf<Conv2d>},        {"attention", leaf<Attention>},
          {"swiglu", leaf<SwiGlu>},        {"activation", leaf<Activation>}};
  if (node["type"] == "block") return std::make_shared<Block>(node, recompute);
  return kLeaves.at(node["type"])(node);
}

std::shared_ptr<Node> make_model(const Json& test_case, Recompute recompute) {
  auto model = make_node(test_case["model"], recompute);
  for (const Json& pair : test_case["ties"])
    share_parameter(*model, pair[0], pair[1]);
  return model;
}

nn::Module& module_named(nn::Module& model, const std::string& name) {
  for (const auto& [path, module] : tessera::named_modules(model)) {
    if (path == name) return *module;
  }
  throw std::invalid_argument("no module is named " + name);
}

std::pair<std::string, std::string> split_name(const std::string& name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string::npos) return {"", name};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

std::map<std::string, std::string> first_names(const Json& test_case) {
  std::map<std::string, std::string> names;
  for (const Json& pair : test_case["ties"]) names[pair[1]] = pair[0];
  return names;
}

}  // namespace differential
