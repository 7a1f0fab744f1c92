#include "tessera/state/optimizer_fields.h"

#include <ATen/ops/scalar_tensor.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <memory>
#include <tuple>

#include "tessera/base/error.h"
#include "tessera/comm/object_collectives.h"
#include "tessera/optim/adamw.h"
#include "tessera/optim/zero_redundancy_optimizer_base.h"

namespace tessera {
namespace {

using torch::optim::OptimizerParamGroup;

template <class Options>
const Options* as(const OptimizerParamGroup& group) {
  return dynamic_cast<const Options*>(&group.options());
}

const ZeroRedundancyOptimizerBase* as_divided(
    const torch::optim::Optimizer& optimizer) {
  return dynamic_cast<const ZeroRedundancyOptimizerBase*>(&optimizer);
}

[[noreturn]] void refuse() {
  throw Unsupported(
      "checkpoint: this optimizer's state is not saved; AdamW, Adam and SGD "
      "are. Save it by a Stateful of your own.");
}

template <class Options>
Value::Pairs adam_fields(const Options& options, bool decoupled) {
  const auto [beta1, beta2] = options.betas();
  return {{"lr", options.lr()},
          {"betas", Value::tuple({beta1, beta2})},
          {"eps", options.eps()},
          {"weight_decay", options.weight_decay()},
          {"amsgrad", options.amsgrad()},
          {"maximize", false},
          {"foreach", Value()},
          {"capturable", false},
          {"differentiable", false},
          {"fused", Value()},
          {"decoupled_weight_decay", decoupled}};
}

Value::Pairs sgd_fields(const torch::optim::SGDOptions& options) {
  return {{"lr", options.lr()},
          {"momentum", options.momentum()},
          {"dampening", options.dampening()},
          {"weight_decay", options.weight_decay()},
          {"nesterov", options.nesterov()},
          {"maximize", false},
          {"foreach", Value()},
          {"differentiable", false},
          {"fused", Value()}};
}

void set_double(const Value& fields, const char* name,
                const std::function<void(double)>& set) {
  if (const Value* value = fields.find(name)) set(value->as_double());
}

// What these classes cannot do must not be asked of them silently.
void refuse_true(const Value& fields, const char* name) {
  const Value* value = fields.find(name);
  const auto* flag = value == nullptr ? nullptr : value->get<bool>();
  require<Unsupported>(flag == nullptr || !*flag, [&] {
    return str("checkpoint: the saved optimizer has ", name,
               " = True, which LibTorch's optimizers do not know.");
  });
}

template <class Options>
void set_adam_fields(Options& options, const Value& fields) {
  set_double(fields, "lr", [&](double value) { options.lr(value); });
  set_double(fields, "eps", [&](double value) { options.eps(value); });
  set_double(fields, "weight_decay",
             [&](double value) { options.weight_decay(value); });
  if (const Value* betas = fields.find("betas")) {
    options.betas(
        {betas->items().at(0).as_double(), betas->items().at(1).as_double()});
  }
  if (const Value* amsgrad = fields.find("amsgrad")) {
    options.amsgrad(amsgrad->as_bool());
  }
}

void set_sgd_fields(torch::optim::SGDOptions& options, const Value& fields) {
  set_double(fields, "lr", [&](double value) { options.lr(value); });
  set_double(fields, "momentum", [&](double v) { options.momentum(v); });
  set_double(fields, "dampening", [&](double v) { options.dampening(v); });
  set_double(fields, "weight_decay",
             [&](double value) { options.weight_decay(value); });
  if (const Value* nesterov = fields.find("nesterov")) {
    options.nesterov(nesterov->as_bool());
  }
}

at::Tensor step_tensor(int64_t step) {
  return at::scalar_tensor(static_cast<double>(step), at::kFloat);
}

template <class Saved>
NamedState adam_state(const torch::optim::OptimizerParamState& state) {
  const auto& saved = static_cast<const Saved&>(state);
  NamedState named{{"step", step_tensor(saved.step())},
                   {"exp_avg", saved.exp_avg()},
                   {"exp_avg_sq", saved.exp_avg_sq()}};
  if (saved.max_exp_avg_sq().defined()) {
    named["max_exp_avg_sq"] = saved.max_exp_avg_sq();
  }
  return named;
}

NamedState fused_state(const AdamW& optimizer, const at::Tensor& parameter) {
  const ParameterState own = optimizer.state_of(parameter);
  if (!own.step.defined()) return {};
  NamedState named{{"step", own.step.to(at::kCPU)},
                   {"exp_avg", own.exp_avg},
                   {"exp_avg_sq", own.exp_avg_sq}};
  if (own.max_exp_avg_sq.defined()) {
    named["max_exp_avg_sq"] = own.max_exp_avg_sq;
  }
  return named;
}

template <class Saved>
std::unique_ptr<torch::optim::OptimizerParamState> make_adam_state(
    NamedState& state) {
  auto saved = std::make_unique<Saved>();
  saved->step(std::llround(state.at("step").item<double>()));
  saved->exp_avg(state.at("exp_avg"));
  saved->exp_avg_sq(state.at("exp_avg_sq"));
  saved->max_exp_avg_sq(state["max_exp_avg_sq"]);
  return saved;
}

}  // namespace

Value::Pairs group_fields(const OptimizerParamGroup& group) {
  if (const auto* options = as<torch::optim::AdamWOptions>(group)) {
    return adam_fields(*options, true);
  }
  if (const auto* options = as<torch::optim::AdamOptions>(group)) {
    return adam_fields(*options, false);
  }
  if (const auto* options = as<torch::optim::SGDOptions>(group)) {
    return sgd_fields(*options);
  }
  refuse();
}

void set_group_fields(OptimizerParamGroup& group, const Value& fields) {
  refuse_true(fields, "maximize");
  auto* options = &group.options();
  if (auto* adamw = dynamic_cast<torch::optim::AdamWOptions*>(options)) {
    set_adam_fields(*adamw, fields);
  } else if (auto* adam = dynamic_cast<torch::optim::AdamOptions*>(options)) {
    set_adam_fields(*adam, fields);
  } else if (auto* sgd = dynamic_cast<torch::optim::SGDOptions*>(options)) {
    set_sgd_fields(*sgd, fields);
  } else {
    refuse();
  }
}

std::vector<std::string> state_names(const OptimizerParamGroup& group) {
  if (const auto* sgd = as<torch::optim::SGDOptions>(group)) {
    if (sgd->momentum() == 0) return {};
    return {"momentum_buffer"};
  }
  const auto* adamw = as<torch::optim::AdamWOptions>(group);
  const auto* adam = as<torch::optim::AdamOptions>(group);
  if (adamw == nullptr && adam == nullptr) refuse();
  if (adamw != nullptr ? adamw->amsgrad() : adam->amsgrad()) {
    return {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
  }
  return {"step", "exp_avg", "exp_avg_sq"};
}

bool is_state_here(const torch::optim::Optimizer& optimizer,
                   const at::Tensor& parameter) {
  const auto* divided = as_divided(optimizer);
  return divided == nullptr || divided->owns(parameter);
}

std::optional<Peers> peers_of(const torch::optim::Optimizer& optimizer) {
  const auto* divided = as_divided(optimizer);
  if (divided == nullptr) return std::nullopt;
  return Peers{divided->group().rank(), divided->group().size(),
               [group = divided->group()](std::string_view bytes) {
                 return distributed::all_gather_object(std::string(bytes),
                                                       group);
               }};
}

NamedState state_of_parameter(torch::optim::Optimizer& optimizer,
                              const at::Tensor& parameter) {
  if (auto* divided = dynamic_cast<ZeroRedundancyOptimizerBase*>(&optimizer)) {
    return state_of_parameter(divided->local_optimizer(), parameter);
  }
  if (const auto* fused = dynamic_cast<AdamW*>(&optimizer)) {
    return fused_state(*fused, parameter);
  }
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer.state().end()) return {};
  if (dynamic_cast<torch::optim::AdamW*>(&optimizer) != nullptr) {
    return adam_state<torch::optim::AdamWParamState>(*found->second);
  }
  if (dynamic_cast<torch::optim::Adam*>(&optimizer) != nullptr) {
    return adam_state<torch::optim::AdamParamState>(*found->second);
  }
  if (dynamic_cast<torch::optim::SGD*>(&optimizer) != nullptr) {
    const auto& saved =
        static_cast<const torch::optim::SGDParamState&>(*found->second);
    if (!saved.momentum_buffer().defined()) return {};
    return {{"momentum_buffer", saved.momentum_buffer()}};
  }
  refuse();
}

void set_state_of_parameter(torch::optim::Optimizer& optimizer,
                            const OptimizerParamGroup& group,
                            const at::Tensor& parameter, NamedState state) {
  if (auto* divided = dynamic_cast<ZeroRedundancyOptimizerBase*>(&optimizer)) {
    set_state_of_parameter(divided->local_optimizer(), group, parameter,
                           std::move(state));
    return;
  }
  if (auto* fused = dynamic_cast<AdamW*>(&optimizer)) {
    fused->set_state_of(parameter,
                        {state.at("step"), state.at("exp_avg"),
                         state.at("exp_avg_sq"), state["max_exp_avg_sq"]});
    return;
  }
  auto& slot = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (as<torch::optim::AdamWOptions>(group) != nullptr) {
    slot = make_adam_state<torch::optim::AdamWParamState>(state);
  } else if (as<torch::optim::AdamOptions>(group) != nullptr) {
    slot = make_adam_state<torch::optim::AdamParamState>(state);
  } else if (as<torch::optim::SGDOptions>(group) != nullptr) {
    auto saved = std::make_unique<torch::optim::SGDParamState>();
    saved->momentum_buffer(state.at("momentum_buffer"));
    slot = std::move(saved);
  } else {
    refuse();
  }
}

}  // namespace tessera
