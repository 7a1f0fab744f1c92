#include "tests/layers/layer_case.h"

#include <ATen/CPUGeneratorImpl.h>

namespace tessera::testing {

namespace nn = torch::nn;
using torch::Tensor;

void PrintTo(const LayerCase& layer_case, std::ostream* out) {
  *out << layer_case.name;
}

Tensor values(Batch batch, at::IntArrayRef sizes, int which) {
  const uint64_t seed = 1000 * which + 10 * batch.rank + batch.step + 100;
  auto generator = at::detail::createCPUGenerator(seed);
  return torch::randn(sizes, generator, torch::kDouble)
      .to(torch::get_default_dtype());
}

Tensor indices(Batch batch, int64_t bound, at::IntArrayRef sizes) {
  const uint64_t seed = 10 * batch.rank + batch.step + 100;
  auto generator = at::detail::createCPUGenerator(seed);
  return torch::randint(bound, sizes, generator, torch::kLong);
}

namespace {

std::vector<LayerCase> linear_cases() {
  const auto one_row = [](nn::LinearImpl& linear, Batch batch) {
    return linear.forward(values(batch, {6})).unsqueeze(0);
  };
  const auto two_inputs = [](nn::BilinearImpl& bilinear, Batch batch) {
    return bilinear.forward(values(batch, {4, 3}), values(batch, {4, 4}, 1));
  };
  return {
      layer<nn::Linear>("Linear2d", {4, 6}, 6, 5),
      layer<nn::Linear>("Linear3d", {4, 2, 6}, 6, 5),
      layer<nn::Linear>("LinearNoBias", {4, 6},
                        nn::LinearOptions(6, 5).bias(false)),
      layer_with<nn::Linear>("Linear1d", one_row, 6, 5),
      layer_with<nn::Bilinear>("Bilinear", two_inputs, 3, 4, 5),
      layer<nn::PReLU>("PReLU", {4, 3, 5},
                       nn::PReLUOptions().num_parameters(3)),
      layer<nn::PReLU>("PReLUShared", {4, 3, 5}),
  };
}

std::vector<LayerCase> convolution_cases() {
  const auto conv2d = nn::Conv2dOptions(4, 4, 3);
  return {
      layer<nn::Conv1d>("Conv1d", {4, 3, 7},
                        nn::Conv1dOptions(3, 4, 3).padding(1)),
      layer<nn::Conv2d>("Conv2d", {4, 4, 5, 5}, conv2d),
      layer<nn::Conv2d>("Conv2dGroups", {4, 4, 7, 7},
                        nn::Conv2dOptions(conv2d).groups(2).stride(2)),
      layer<nn::Conv2d>("Conv2dDepthwise", {4, 4, 7, 7},
                        nn::Conv2dOptions(conv2d).groups(4).dilation(2)),
      layer<nn::Conv2d>(
          "Conv2dReflect", {4, 4, 7, 7},
          nn::Conv2dOptions(conv2d).padding(1).padding_mode(torch::kReflect)),
      layer<nn::Conv2d>(
          "Conv2dCircular", {4, 4, 7, 7},
          nn::Conv2dOptions(conv2d).padding(1).padding_mode(torch::kCircular)),
      layer<nn::Conv2d>("Conv2dSame", {4, 4, 5, 5},
                        nn::Conv2dOptions(conv2d).padding(torch::kSame)),
      layer<nn::Conv2d>("Conv2dNoBias", {4, 4, 5, 5},
                        nn::Conv2dOptions(conv2d).bias(false)),
      layer<nn::Conv3d>("Conv3d", {2, 2, 5, 5, 5}, nn::Conv3dOptions(2, 3, 3)),
      layer<nn::ConvTranspose1d>("ConvTranspose1d", {4, 3, 5},
                                 nn::ConvTranspose1dOptions(3, 4, 3)),
      layer<nn::ConvTranspose2d>(
          "ConvTranspose2d", {4, 4, 5, 5},
          nn::ConvTranspose2dOptions(4, 6, 3).stride(2).groups(2)),
      layer<nn::ConvTranspose3d>("ConvTranspose3d", {2, 3, 3, 3, 3},
                                 nn::ConvTranspose3dOptions(3, 2, 2)),
  };
}

// A layer in evaluation mode, whose running statistics are used and stay.
template <class Holder, class... Options>
LayerCase evaluated(std::string name, std::vector<int64_t> input,
                    Options... options) {
  LayerCase result = layer<Holder>(std::move(name), input, options...);
  result.make = [make = result.make] {
    ModulePtr module = make();
    module->eval();
    return module;
  };
  return result;
}

// In training mode each rank normalises with the statistics of its own batch;
// so does one process that is given one rank's batch after the other.
std::vector<LayerCase> norm_cases() {
  const auto tracked = [](int64_t features) {
    return nn::InstanceNormOptions(features).affine(true).track_running_stats(
        true);
  };
  return {
      layer<nn::BatchNorm1d>("BatchNorm1d", {6, 5}, 5),
      layer<nn::BatchNorm2d>("BatchNorm2d", {4, 3, 5, 5}, 3),
      layer<nn::BatchNorm3d>("BatchNorm3d", {3, 2, 3, 3, 3}, 2),
      layer<nn::BatchNorm1d>(
          "BatchNorm1dUntracked", {6, 5},
          nn::BatchNorm1dOptions(5).track_running_stats(false)),
      evaluated<nn::BatchNorm2d>("BatchNorm2dEval", {4, 3, 5, 5}, 3),
      layer<nn::InstanceNorm1d>("InstanceNorm1d", {4, 3, 5},
                                nn::InstanceNormOptions(3).affine(true)),
      layer<nn::InstanceNorm2d>("InstanceNorm2d", {4, 3, 5, 5}, tracked(3)),
      layer<nn::InstanceNorm3d>("InstanceNorm3d", {3, 2, 3, 3, 3}, tracked(2)),
      evaluated<nn::InstanceNorm2d>("InstanceNorm2dEval", {4, 3, 5, 5},
                                    tracked(3)),
      layer<nn::LayerNorm>("LayerNorm", {4, 3, 5},
                           nn::LayerNormOptions({3, 5})),
      layer<nn::GroupNorm>("GroupNorm", {4, 4, 5}, nn::GroupNormOptions(2, 4)),
  };
}

void append(std::vector<LayerCase>& all, std::vector<LayerCase> more) {
  for (LayerCase& one : more) all.push_back(std::move(one));
}

}  // namespace

std::vector<LayerCase> dense_cases() {
  std::vector<LayerCase> all = linear_cases();
  append(all, convolution_cases());
  append(all, norm_cases());
  return all;
}

std::vector<LayerCase> lookup_cases() {
  const auto look_up = [](auto& table, Batch batch) -> Tensor {
    return table.forward(indices(batch, 11, {4, 5}));
  };
  const auto bags = [](nn::EmbeddingBagImpl& table, Batch batch) {
    return table.forward(indices(batch, 11, {12}),
                         torch::tensor({0, 2, 7}, torch::kLong),
                         values(batch, {12}));
  };
  const auto log_softmax = [](nn::AdaptiveLogSoftmaxWithLossImpl& softmax,
                              Batch batch) {
    const Tensor target = indices(batch, 12, {6});
    return softmax.forward(values(batch, {6, 8}), target).output.unsqueeze(1);
  };
  const auto table = nn::EmbeddingOptions(11, 6);
  const auto bag = [](nn::EmbeddingBagMode mode) {
    return nn::EmbeddingBagOptions(11, 6).mode(mode);
  };
  const std::vector<int64_t> cutoffs = {4, 8};
  LayerCase softmax = layer_with<nn::AdaptiveLogSoftmaxWithLoss>(
      "AdaptiveLogSoftmaxWithLoss", log_softmax,
      nn::AdaptiveLogSoftmaxWithLossOptions(8, 12, cutoffs).div_value(2));
  return {
      layer_with<nn::Embedding>("Embedding", look_up, table),
      layer_with<nn::Embedding>("EmbeddingPaddingIdx", look_up,
                                nn::EmbeddingOptions(table).padding_idx(2)),
      layer_with<nn::Embedding>(
          "EmbeddingScaleByFreq", look_up,
          nn::EmbeddingOptions(table).scale_grad_by_freq(true)),
      layer_with<nn::Embedding>("EmbeddingSparse", look_up,
                                nn::EmbeddingOptions(table).sparse(true)),
      layer_with<nn::EmbeddingBag>("EmbeddingBagSum", look_up,
                                   bag(torch::kSum)),
      layer_with<nn::EmbeddingBag>("EmbeddingBagMean", look_up,
                                   bag(torch::kMean)),
      layer_with<nn::EmbeddingBag>("EmbeddingBagMax", look_up,
                                   bag(torch::kMax)),
      layer_with<nn::EmbeddingBag>("EmbeddingBagSparse", look_up,
                                   bag(torch::kMean).sparse(true)),
      layer_with<nn::EmbeddingBag>("EmbeddingBagWeighted", bags,
                                   bag(torch::kSum)),
      std::move(softmax),
  };
}

std::vector<LayerCase> all_cases() {
  std::vector<LayerCase> all = dense_cases();
  append(all, lookup_cases());
  append(all, recurrent_cases());
  append(all, attention_cases());
  append(all, container_cases());
  append(all, use_cases());
  return all;
}

std::vector<LayerCase> cases_to_initialise() {
  std::vector<LayerCase> cases = all_cases();
  std::erase_if(cases,
                [](const LayerCase& one) { return !one.can_be_on_meta; });
  return cases;
}

}  // namespace tessera::testing
