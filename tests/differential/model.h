// Models out of a case's JSON; model.py builds the same ones, with the same
// names. Hidden states are [rows, seq, dim] everywhere.
//
// A node is a leaf, which holds one module of LibTorch as `m` or parameters of
// its own:
//
//   {"type": "linear", "in": 4, "out": 3, "bias": true}
//   embedding (vocab, dim), layer_norm (dim), rms_norm (dim), scale (dim),
//   conv1d (in, out, kernel, bias), conv2d (channels, kernel, bias),
//   attention (dim, heads), swiglu (dim, hidden), activation (name)
//
// or a block, which holds nodes in a ModuleList `list`:
//
//   {"type": "block", "style": "residual", "recompute": false, "nodes": [...]}
//
//   sequence  one after the other
//   residual  the same, added to the input
//   sum       all on the same input, added
//   side      the first; the others run and nobody uses what they give
//   spare     the first; the others never run
//   twice     one after the other, two times over
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

namespace differential {

using Json = nlohmann::json;

enum class Recompute { as_the_case_says, never };

struct Node : torch::nn::Module {
  virtual torch::Tensor forward(const torch::Tensor& x) = 0;
};

[[nodiscard]] std::shared_ptr<Node> make_node(const Json& node,
                                              Recompute recompute);

/// The model of a case, with its ties; values as they come.
[[nodiscard]] std::shared_ptr<Node> make_model(const Json& test_case,
                                               Recompute recompute);

[[nodiscard]] torch::nn::Module& module_named(torch::nn::Module& model,
                                              const std::string& name);

/// "name.of.module" and "key", of "name.of.module.key".
[[nodiscard]] std::pair<std::string, std::string> split_name(
    const std::string& name);

/// The names under which tied parameters stand, and the one that gives the
/// value.
[[nodiscard]] std::map<std::string, std::string> first_names(
    const Json& test_case);

}  // namespace differential
