#include <set>

#include "tessera/tessera.h"
#include "tests/differential/batches.h"
#include "tests/differential/outcome.h"
#include "tests/differential/train.h"
#include "tests/differential/values.h"

namespace differential {

using torch::Tensor;

namespace {

using Parameters = std::vector<tessera::FoundParameter>;

std::optional<c10::ScalarType> optional_dtype(const Json& name) {
  if (name.is_null()) return std::nullopt;
  return dtype_of(name);
}

tessera::ReshardAfterForward reshard_of(const Json& reshard) {
  if (reshard.is_null()) return tessera::Reshard::automatic;
  if (reshard.is_number()) return int(reshard);
  return reshard ? tessera::Reshard::always : tessera::Reshard::never;
}

Parameters parameters_of(Node& model) {
  torch::nn::Module* const roots[] = {&model};
  return tessera::find_parameters(roots);
}

/// One rank.
class Sharded {
 public:
  Sharded(const Json& test_case, const tessera::World& world)
      : case_(test_case), world_(world) {
    build();
    for (const auto& [tensor, name, owners] : parameters_of(*model_)) {
      if (is_below(name, case_["frozen"])) tensor.set_requires_grad(false);
      if (is_below(name, case_["ignored"])) ignored_.push_back(tensor);
    }
    shard();
    if (case_["meta"]) materialize();
    const int64_t seed = case_["seed"];
    tessera::set_norm_in_backward(*model_, seed % 2 == 0
                                               ? tessera::NormInBackward::on
                                               : tessera::NormInBackward::off);
    for (const auto& found : parameters_of(*model_)) {
      parameters_.push_back(found.tensor);
      names_.push_back(found.name);
    }
  }

  void train(Outcome& outcome) {
    const auto optimizer = make_optimizer(case_["optimizer"], parameters_);
    for (int step = 0; step < case_["steps"]; ++step) {
      apply_freezing(case_, step, names_, parameters_);
      backward(step, outcome);
      record_gradients(step, outcome);
      const Tensor norm = tessera::clip_grad_norm_(
          parameters_, max_norm_of(case_), {.norm_type = norm_type_of(case_)});
      if (world_.rank() == 0) outcome.set_norm(step, norm.item<double>());
      optimizer->step();
      optimizer->zero_grad(bool(case_["set_to_none"]));
      if (case_["evaluate"]) {
        outcome.add_evaluation(step,
                               evaluate(*model_, case_, step, world_.rank()));
      }
    }
    record_weights(outcome);
  }

 private:
  void build() {
    const auto make = [&] {
      return make_model(case_, Recompute::as_the_case_says);
    };
    model_ = case_["meta"] ? tessera::on_meta(make) : make();
    if (!case_["meta"]) {
      const torch::NoGradGuard no_grad;
      for (const auto& found : parameters_of(*model_)) {
        found.tensor.copy_(
            start(found.name, case_["seed"], found.tensor.sizes()));
      }
    }
    model_->to(dtype_of(case_["dtype"]));
  }

  [[nodiscard]] tessera::DeviceMesh make_mesh() const {
    const std::vector<int64_t> shape = case_["mesh"];
    if (shape.size() == 1) return tessera::init_device_mesh(world_);
    return tessera::init_device_mesh(
        world_, {.shape = shape, .axes = {"replicate", "shard"}});
  }

  /// Along which dims the case cuts parameters.
  [[nodiscard]] tessera::ShardPlacementFn placements() const {
    std::map<const c10::TensorImpl*, int64_t> dims;
    for (const auto& found : parameters_of(*model_)) {
      const auto dim = case_["placements"].find(found.name);
      if (dim == case_["placements"].end()) continue;
      dims[found.tensor.unsafeGetTensorImpl()] = *dim;
    }
    return [dims](const Tensor& parameter) -> std::optional<tessera::Shard> {
      const auto dim = dims.find(parameter.unsafeGetTensorImpl());
      if (dim == dims.end()) return std::nullopt;
      return tessera::Shard{dim->second};
    };
  }

  void shard() {
    tessera::FullyShardOptions options{
        .mesh = make_mesh(),
        .ignored_params = ignored_,
        .shard_placement_fn = placements(),
        .prefetch = case_["prefetch"],
        .debug = case_["poison"] ? tessera::Debug::poison_memory
                                 : tessera::Debug::none};
    if (case_["offload"]) options.offload_policy = {.pin_memory = false};
    for (const Json& unit : case_["units"]) {
      options.reshard_after_forward = reshard_of(unit["reshard"]);
      options.mp_policy = {.param_dtype = optional_dtype(unit["param_dtype"]),
                           .reduce_dtype = optional_dtype(unit["reduce_dtype"]),
                           .output_dtype = optional_dtype(unit["output_dtype"]),
                           .cast_forward_inputs =
                               unit["cast_inputs"] ? tessera::CastInputs::on
                                                   : tessera::CastInputs::off};
      std::vector<torch::nn::Module*> modules;
      for (const std::string name : unit["modules"]) {
        modules.push_back(&module_named(*model_, name));
      }
      if (modules.size() == 1) {
        tessera::fully_shard(*modules[0], options);
      } else {
        tessera::fully_shard(modules, options);
      }
    }
  }

  void materialize() {
    const auto firsts = first_names(case_);
    const auto init = [&](torch::nn::Module& module, const std::string& name) {
      for (auto& item : module.named_parameters(/*recurse=*/false)) {
        std::string full = tessera::join_names(name, item.key());
        if (firsts.contains(full)) full = firsts.at(full);
        item.value().copy_(start(full, case_["seed"], item.value().sizes()));
      }
    };
    tessera::materialize(*model_, {.init = init});
  }

  /// What is said before the `micro`-th backward of a step.
  void set_up_backward(int micro) {
    const bool last = micro + 1 == case_["micro_batches"];
    const bool sync = last || case_["sync"] != "last";
    tessera::set_requires_gradient_sync(
        *model_, sync ? tessera::Sync::on : tessera::Sync::off);
    const bool all_reduce = last || case_["sync"] == "each";
    if (sync) {
      tessera::set_requires_all_reduce(*model_, all_reduce
                                                    ? tessera::AllReduce::on
                                                    : tessera::AllReduce::off);
    }
    const bool keep = !last && case_["keep_after_backward"];
    tessera::set_reshard_after_backward(
        *model_, keep ? tessera::Reshard::never : tessera::Reshard::always);
  }

  void backward(int step, Outcome& outcome) {
    const int count = case_["micro_batches"];
    const auto before = [this](int micro) { set_up_backward(micro); };
    const RankStep ran =
        run_rank(*model_, case_, step, world_.rank(), 1.0 / count, before);
    outcome.add_loss(step, ran.loss);
    if (world_.rank() == 0 && ran.input_gradient.defined()) {
      outcome.set_input_gradient(step, ran.input_gradient);
    }
    average_ignored();
  }

  /// Nobody reduces the gradients of ignored parameters but their owner.
  void average_ignored() {
    for (const Tensor& parameter : ignored_) {
      if (!parameter.grad().defined()) continue;
      if (!ranks_) {
        std::vector<int> all(world_.size());
        std::iota(all.begin(), all.end(), 0);
        ranks_ = world_.make_communicator("ignored", all);
      }
      ranks_->all_reduce(parameter.grad(), tessera::ReduceOp::sum, {}).wait();
      parameter.mutable_grad().div_(world_.size());
    }
  }

  void record_gradients(int step, Outcome& outcome) const {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const Tensor grad = parameters_[i].grad();
      const auto* spread = tessera::spread_of(parameters_[i]);
      if (!spread) {
        outcome.add_gradient(step, names_[i], grad);
        continue;
      }
      outcome.add_gradient(step, names_[i], spread->global_sizes, spread->boxes,
                           grad.defined() ? tessera::local(grad) : grad);
    }
  }

  void record_weights(Outcome& outcome) {
    const tessera::FullParameters whole(*model_, tessera::Write::discard);
    if (world_.rank() != 0) return;
    for (const auto& found : parameters_of(*model_)) {
      outcome.set_weight(found.name, found.tensor);
    }
  }

  const Json& case_;
  tessera::World world_;
  std::shared_ptr<Node> model_;
  std::vector<Tensor> ignored_;
  std::vector<Tensor> parameters_;
  std::vector<std::string> names_;
  std::shared_ptr<tessera::Communicator> ranks_;
};

}  // namespace

Json train_sharded(const Json& test_case) {
  const int num_ranks = test_case["world"];
  Outcome outcome(num_ranks, test_case["steps"]);
  tessera::run_ranks(
      num_ranks,
      [&](const tessera::World& world) {
        Sharded(test_case, world).train(outcome);
      },
      std::chrono::seconds(20));
  return outcome.json();
}

}  // namespace differential
