#include "tessera/module/traversal.h"

#include <unordered_map>
#include <unordered_set>

namespace tessera {

namespace {

// The dictionary is protected; a pointer to member reaches it.
struct DictionaryAccess : torch::nn::Module {
  static auto parameters_member() { return &DictionaryAccess::parameters_; }
};

torch::OrderedDict<std::string, at::Tensor>& dictionary(
    torch::nn::Module& module) {
  return module.*DictionaryAccess::parameters_member();
}

void collect(torch::nn::Module& module, const std::string& name,
             std::unordered_set<torch::nn::Module*>& seen,
             std::vector<NamedModule>& found) {
  if (!seen.insert(&module).second) return;
  found.push_back({name, &module});
  for (const auto& child : module.named_children()) {
    if (child.value()) {
      collect(*child.value(), join_names(name, child.key()), seen, found);
    }
  }
}

}  // namespace

std::string join_names(const std::string& name, const std::string& key) {
  return name.empty() ? key : name + "." + key;
}

std::vector<NamedModule> named_modules(torch::nn::Module& root) {
  std::vector<NamedModule> found;
  std::unordered_set<torch::nn::Module*> seen;
  collect(root, "", seen, found);
  return found;
}

std::vector<FoundParameter> find_parameters(
    std::span<torch::nn::Module* const> roots) {
  std::vector<FoundParameter> found;
  std::unordered_map<c10::TensorImpl*, size_t> index;
  std::unordered_set<torch::nn::Module*> seen;
  for (torch::nn::Module* root : roots) {
    for (const auto& [name, module] : named_modules(*root)) {
      if (!seen.insert(module).second) continue;
      for (const auto& item : dictionary(*module)) {
        const at::Tensor& tensor = item.value();
        if (!tensor.defined()) continue;
        const auto [at, is_new] =
            index.emplace(tensor.unsafeGetTensorImpl(), found.size());
        if (is_new) found.push_back({tensor, join_names(name, item.key()), {}});
        found[at->second].owners.push_back({module, item.key()});
      }
    }
  }
  return found;
}

void set_entry(const ParameterOwner& owner, const at::Tensor& tensor) {
  dictionary(*owner.module)[owner.key] = tensor;
}

const at::Tensor& entry(const ParameterOwner& owner) {
  return dictionary(*owner.module)[owner.key];
}

}  // namespace tessera
