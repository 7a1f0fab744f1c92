#include "tessera/state/state.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/tensor/spread.h"

namespace tessera {
namespace {

class OneValue final : public Stateful {
 public:
  explicit OneValue(Value value) : value_(std::move(value)) {}

  [[nodiscard]] const Value& value() const { return value_; }
  StateDict state_dict() override {
    StateDict dict;
    add_value(dict, {}, value_);
    return dict;
  }
  StateDict targets(const Stored&) override { return state_dict(); }
  void loaded(const StateDict&, const Stored& stored) override {
    value_ = stored.nested_over(state_dict());
  }

 private:
  Value value_;
};

class OneTensor final : public Stateful {
 public:
  explicit OneTensor(at::Tensor tensor) : tensor_(std::move(tensor)) {}

  StateDict state_dict() override { return {{{}, state_tensor(tensor_)}}; }
  StateDict targets(const Stored&) override { return state_dict(); }
  void loaded(const StateDict&, const Stored&) override {}

 private:
  at::Tensor tensor_;
};

class ModelState final : public Stateful {
 public:
  explicit ModelState(torch::nn::Module& model) : model_(model) {}

  StateDict state_dict() override {
    StateDict dict;
    for (const auto& item : model_.named_parameters()) {
      if (!item.value().defined()) continue;
      dict.push_back({{item.key()}, state_tensor(item.value())});
    }
    for (const auto& item : model_.named_buffers()) {
      if (!item.value().defined()) continue;
      dict.push_back({{item.key()}, state_tensor(item.value())});
    }
    return dict;
  }
  StateDict targets(const Stored&) override { return state_dict(); }
  void loaded(const StateDict&, const Stored&) override {}
  std::shared_ptr<Communicator> communicator() override {
    for (const at::Tensor& parameter : model_.parameters()) {
      const Spread* spread =
          parameter.defined() ? spread_of(parameter) : nullptr;
      if (spread != nullptr && spread->holders) {
        return spread->holders;
      }
    }
    return nullptr;
  }

 private:
  torch::nn::Module& model_;
};

}  // namespace

State& State::add(const std::string& name, std::shared_ptr<Stateful> part) {
  const bool is_new =
      std::ranges::find(parts_, name, &Part::first) == parts_.end();
  require<InvalidArgument>(is_new && !name.empty(), [&] {
    return str("State::add: '", name, "' is empty or there already.");
  });
  parts_.emplace_back(name, std::move(part));
  return *this;
}

State& State::add(const std::string& name, Value value) {
  return add(name, std::make_shared<OneValue>(std::move(value)));
}

State& State::add(const std::string& name, const at::Tensor& tensor) {
  return add(name, std::make_shared<OneTensor>(tensor));
}

const Value& State::value(const std::string& name) const {
  const auto found = std::ranges::find(parts_, name, &Part::first);
  const auto* part = found == parts_.end()
                         ? nullptr
                         : dynamic_cast<const OneValue*>(found->second.get());
  require<InvalidArgument>(part != nullptr, [&] {
    return str("State::value: no value was added as '", name, "'.");
  });
  return part->value();
}

StateDict ValueState::state_dict() {
  StateDict dict;
  add_value(dict, {}, get_());
  return dict;
}

StateDict ValueState::targets(const Stored& stored) {
  return stored.values.empty() ? state_dict() : StateDict();
}

void ValueState::loaded(const StateDict&, const Stored& stored) {
  if (!stored.values.empty()) set_(stored.nested());
}

std::shared_ptr<Stateful> model_state(torch::nn::Module& model) {
  return std::make_shared<ModelState>(model);
}

State state_of(torch::nn::Module& model) {
  State state;
  state.add("model", model_state(model));
  return state;
}

State state_of(torch::nn::Module& model, torch::optim::Optimizer& optimizer) {
  State state = state_of(model);
  state.add("optim", optimizer_state(model, optimizer));
  return state;
}

}  // namespace tessera
