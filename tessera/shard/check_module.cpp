#include "tessera/shard/check_module.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/modules/container/parameterdict.h>
#include <torch/nn/modules/container/parameterlist.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/fnv_hash.h"
#include "tessera/module/gate.h"
#include "tessera/shard/check_precision.h"

namespace tessera {

namespace {

uint64_t hash_values(const at::Tensor& tensor) {
  torch::NoGradGuard no_grad;
  const at::Tensor host = tensor.detach().cpu().contiguous();
  return hash_bytes(host.const_data_ptr(), host.nbytes());
}

std::string describe(const FoundParameter& found) {
  const at::Tensor& tensor = found.tensor;
  std::string text =
      tessera::str(found.name, " ", tensor.sizes(), " ", tensor.dtype().name(),
                   tensor.requires_grad() ? "" : " frozen");
  if (tensor.is_meta()) return text + " on meta";
  return text + tessera::str(" values ", std::hex, hash_values(tensor));
}

std::string describe(const std::vector<FoundParameter>& parameters) {
  std::string text;
  for (const auto& found : parameters) text += describe(found) + "\n";
  return text;
}

std::string first_line_that_differs(const std::string& a,
                                    const std::string& b) {
  const size_t at =
      std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
  const auto line = [&](const std::string& text) {
    if (at >= text.size()) return std::string("(nothing)");
    const size_t begin = text.rfind('\n', at == 0 ? 0 : at - 1);
    const size_t from = begin == std::string::npos ? 0 : begin + 1;
    return text.substr(from, text.find('\n', at) - from);
  };
  return tessera::str("'", line(a), "' on rank 0 and '", line(b), "'");
}

}  // namespace

void check_options(const FullyShardOptions& options) {
  require<InvalidArgument>(options.mesh.defined(), [] {
    return tessera::str(
        "fully_shard: no mesh given; set FullyShardOptions::mesh, for example "
        "to init_device_mesh(world).");
  });
  check_policy(options.mp_policy);
  require<InvalidState>(!c10::InferenceMode::is_enabled(), [] {
    return tessera::str(
        "fully_shard: inside InferenceMode, where it would make parameters "
        "that can never train; call it outside.");
  });
}

void check_modules(std::span<torch::nn::Module* const> modules,
                   const std::vector<at::Tensor>& ignored) {
  const auto is_ignored = [&](const at::Tensor& parameter) {
    return std::any_of(
        ignored.begin(), ignored.end(),
        [&](const at::Tensor& t) { return t.is_same(parameter); });
  };
  for (torch::nn::Module* root : modules) {
    for (const auto& [name, module] : named_modules(*root)) {
      require<InvalidArgument>(
          !module->as<torch::nn::ParameterList>() &&
              !module->as<torch::nn::ParameterDict>(),
          [&] {
            return tessera::str(
                "fully_shard: '", name, "' is a ", module->name(),
                ", which reads its parameters through the module's dictionary "
                "and would compute with shards. Hold them as typed members "
                "(register_parameter) instead.");
          });
      const auto* embedding = module->as<torch::nn::Embedding>();
      const auto* bag = module->as<torch::nn::EmbeddingBag>();
      require<Unsupported>(
          !(embedding && embedding->options.max_norm() &&
            !is_ignored(embedding->weight)) &&
              !(bag && bag->options.max_norm() && !is_ignored(bag->weight)),
          [&] {
            return tessera::str(
                "fully_shard: '", name,
                "' has max_norm, which writes its "
                "weight in forward; that write would be lost. Leave max_norm "
                "out, or put the weight into ignored_params.");
          });
    }
  }
}

void check_parameters(const std::vector<FoundParameter>& parameters) {
  for (const auto& [tensor, name, owners] : parameters) {
    require<InvalidArgument>(tensor.dim() > 0, [&] {
      return tessera::str("fully_shard: parameter '", name,
                          "' has no dim; make it 1-D of one element.");
    });
    require<InvalidArgument>(tensor.is_floating_point(), [&] {
      return tessera::str("fully_shard: parameter '", name, "' is ",
                          tensor.dtype().name(),
                          ", not floating-point; register it as a buffer.");
    });
    require<Unsupported>(
        tensor.layout() == at::kStrided && tensor.is_contiguous(), [&] {
          return tessera::str("fully_shard: parameter '", name, "' of shape ",
                              tensor.sizes(), " and strides ", tensor.strides(),
                              " is not contiguous (channels_last?); make it "
                              "contiguous before.");
        });
    require<InvalidState>(tensor.is_leaf() && !tensor.is_inference(), [&] {
      return tessera::str("fully_shard: parameter '", name,
                          "' is not a leaf, or was made in InferenceMode; it "
                          "cannot be trained.");
    });
  }
}

void check_holders(const std::vector<FoundParameter>& parameters) {
  // A module holds a parameter twice, in its dictionary and as a member. Single
  // parameters may have further holders (ties, whose other modules lie outside
  // of this call); a list of parameters, such as an optimizer's, holds all.
  const auto extra = [](const FoundParameter& found) {
    const auto holders = static_cast<int64_t>(found.tensor.use_count()) - 1;
    return holders - 2 * static_cast<int64_t>(found.owners.size());
  };
  int64_t num_trained = 0;
  int64_t num_held = 0;
  const FoundParameter* first = nullptr;
  for (const FoundParameter& found : parameters) {
    if (!found.tensor.requires_grad()) continue;
    ++num_trained;
    if (extra(found) <= 0) continue;
    ++num_held;
    if (!first) first = &found;
  }
  require<InvalidState>(num_held < 2 || num_held < num_trained, [&] {
    return tessera::str(
        "fully_shard: parameter '", first->name, "' and the other ",
        num_held - 1,
        " trained ones have more holders than their modules "
        "explain: an optimizer made before fully_shard, or a list from "
        "parameters() still alive. After sharding it would hold tensors that "
        "nobody trains. Make the optimizer after fully_shard, and let such "
        "lists go first.");
  });
}

void check_equal_start(const std::vector<FoundParameter>& parameters,
                       const ShardLanes& lanes) {
  if (lanes.num_ranks() == 1) return;
  const std::string mine = describe(parameters);
  GateOff off;
  torch::NoGradGuard no_grad;
  const auto hash = static_cast<int64_t>(hash_bytes(mine.data(), mine.size()));
  const auto on_device = at::TensorOptions(at::kLong).device(lanes.device);
  const at::Tensor input = at::full({1}, hash, on_device);
  const at::Tensor output = at::empty({lanes.num_ranks()}, on_device);
  const GatherCall call[] = {{output, input}};
  const CallLabel label{.unit = "", .phase = "fully_shard", .op = ""};
  lanes.control->all_gather(call, label).wait();
  if (output.eq(output[0]).all().item<bool>()) return;  // alike on all ranks
  const auto all = lanes.control->exchange(mine, label);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    require<InvalidState>(all[rank] == all[0], [&] {
      return tessera::str(
          "fully_shard: the ranks start from different parameters: ",
          first_line_that_differs(all[0], all[rank]), " on rank ", rank,
          ". Each rank keeps its part of its own values, so they would be "
          "mixed. Seed all ranks alike, or build with on_meta and call "
          "materialize; StartCheck::off skips this check.");
    });
  }
}

}  // namespace tessera
