// Walking a module: its parameters with their names, owners and ties.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// A module's dictionary entry that holds a parameter.
struct ParameterOwner {
  torch::nn::Module* module;
  std::string key;
};

/// A parameter and every dictionary entry that holds it (several when tied).
struct FoundParameter {
  at::Tensor tensor;
  std::string name;  // fully qualified, of the first owner
  std::vector<ParameterOwner> owners;
};

/// A module below a root, with its name there ("" for the root itself).
struct NamedModule {
  std::string name;
  torch::nn::Module* module;
};

/// `root` and all below it, parents before children, each once.
[[nodiscard]] std::vector<NamedModule> named_modules(torch::nn::Module& root);

/// The distinct parameters of `roots`, in order of registration. Undefined
/// entries are skipped. With several roots names are those of each root.
[[nodiscard]] std::vector<FoundParameter> find_parameters(
    std::span<torch::nn::Module* const> roots);

/// Puts `tensor` into the dictionary entry; the typed member stays as it is.
void set_entry(const ParameterOwner& owner, const at::Tensor& tensor);
[[nodiscard]] const at::Tensor& entry(const ParameterOwner& owner);

/// "name.key", without a leading dot.
[[nodiscard]] std::string join_names(const std::string& name,
                                     const std::string& key);

}  // namespace tessera
