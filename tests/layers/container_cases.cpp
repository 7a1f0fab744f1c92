#include <torch/jit.h>

#include "tests/layers/layer_case.h"

namespace tessera::testing {

namespace nn = torch::nn;
using torch::Tensor;

namespace {

Tensor run_sequential(nn::SequentialImpl& layers, Batch batch) {
  return layers.forward(values(batch, {4, 6}));
}

Tensor run_list(nn::ModuleListImpl& layers, Batch batch) {
  Tensor x = values(batch, {4, 6});
  for (const auto& one : layers) x = one->as<nn::Linear>()->forward(x);
  return x;
}

Tensor run_one_of_dict(nn::ModuleDictImpl& layers, Batch batch) {
  return layers["used"]->as<nn::Linear>()->forward(values(batch, {4, 6}));
}

Tensor run_as_any_module(nn::LinearImpl& linear, Batch batch) {
  nn::AnyModule any(
      std::static_pointer_cast<nn::LinearImpl>(linear.shared_from_this()));
  return any.forward(values(batch, {4, 6}));
}

Tensor run_scripted(nn::LinearImpl& linear, Batch batch) {
  static const auto script = torch::jit::compile(
      "def f(x, w):\n"
      "    y = torch.tanh(x.mm(w.t()))\n"
      "    return y * w.sum() + torch.relu(y) * 2\n");
  const Tensor x = values(batch, {4, 6});
  return script->run_method("f", x, linear.weight).toTensor() + linear.bias;
}

// Every step that `to`, `train` and `eval` may do to a list of weights.
template <class Holder, class... Options>
LayerCase converted(LayerCase layer_case, Options... options) {
  layer_case.make = [=]() -> ModulePtr {
    ModulePtr module = Holder(options...).ptr();
    module->to(torch::kFloat);
    module->to(torch::typeMetaToScalarType(torch::get_default_dtype()));
    module->to(torch::kCPU);
    module->eval();
    module->train();
    return module;
  };
  layer_case.can_be_on_meta = false;
  return layer_case;
}

LayerCase pretrained_embedding(std::string name, bool freeze) {
  const auto look_up = [](nn::EmbeddingImpl& table, Batch batch) {
    return table.forward(indices(batch, 11, {4, 5}));
  };
  LayerCase result = layer_with<nn::Embedding>(std::move(name), look_up, 11, 6);
  result.make = [freeze]() -> ModulePtr {
    return nn::Embedding::from_pretrained(
               values({}, {11, 6}),
               nn::EmbeddingFromPretrainedOptions().freeze(freeze))
        .ptr();
  };
  if (freeze) result.may_rest = {"layer.weight"};
  result.can_be_on_meta = false;
  return result;
}

}  // namespace

std::vector<LayerCase> container_cases() {
  using Named = std::vector<std::pair<std::string, ModulePtr>>;
  LayerCase sequential =
      layer_with<nn::Sequential>("Sequential", run_sequential);
  sequential.make = []() -> ModulePtr {
    return nn::Sequential(nn::Linear(6, 5), nn::BatchNorm1d(5), nn::PReLU(),
                          nn::Linear(5, 4))
        .ptr();
  };
  // A norm takes it away again: its gradient is zero in theory.
  sequential.may_rest = {"layer.0.bias"};
  LayerCase list = layer_with<nn::ModuleList>("ModuleList", run_list);
  list.make = []() -> ModulePtr {
    return nn::ModuleList(nn::Linear(6, 5), nn::Linear(5, 7)).ptr();
  };
  LayerCase dict =
      layer_with<nn::ModuleDict>("ModuleDictHalfUsed", run_one_of_dict);
  dict.make = []() -> ModulePtr {
    return nn::ModuleDict(Named{{"used", nn::Linear(6, 5).ptr()},
                                {"idle", nn::Linear(6, 5).ptr()}})
        .ptr();
  };
  dict.may_rest = {"layer.idle.weight", "layer.idle.bias"};
  return {std::move(sequential), std::move(list), std::move(dict),
          layer_with<nn::Linear>("AnyModule", run_as_any_module, 6, 5)};
}

std::vector<LayerCase> use_cases() {
  const auto sequence = [](nn::LSTMImpl& lstm, Batch batch) {
    return std::get<0>(lstm.forward(values(batch, {3, 4, 4})));
  };
  return {
      layer_with<nn::Linear>("TorchScript", run_scripted, 6, 5),
      converted<nn::Linear>(layer<nn::Linear>("LinearConverted", {4, 6}, 6, 5),
                            6, 5),
      converted<nn::LSTM>(layer_with<nn::LSTM>("LSTMConverted", sequence, 4, 5),
                          4, 5),
      pretrained_embedding("EmbeddingPretrained", /*freeze=*/false),
      pretrained_embedding("EmbeddingPretrainedFrozen", /*freeze=*/true),
  };
}

}  // namespace tessera::testing
