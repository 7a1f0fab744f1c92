// Operators that write lists of shards: LibTorch's own fused optimizers do not
// move version counters, and what was gathered before must be stale all the
// same.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "tests/support/agreement.h"

namespace tessera::test {
namespace {

using List = std::vector<Tensor>;

/// What an optimizer of lists holds.
struct State {
  List first, second, steps;
};

/// One step over `weights`, by one operator.
struct ListWriter {
  std::string name;
  std::function<void(const List& weights, const List& gradients, State&)> step;
};

List each(const List& list, const std::function<Tensor(const Tensor&)>& make) {
  List made;
  for (const Tensor& tensor : list) made.push_back(make(tensor));
  return made;
}

Tensor rate() { return torch::full({}, 0.1); }

std::vector<ListWriter> fused_optimizers() {
  return {
      {"_fused_sgd_",
       [](const List& w, const List& g, State& s) {
         at::_fused_sgd_(w, g, s.first, 0.01, 0.9, 0.1, 0, false, false, false);
       }},
      {"_fused_sgd_.tensor_lr",
       [](const List& w, const List& g, State& s) {
         at::_fused_sgd_(w, g, s.first, 0.01, 0.9, rate(), 0, false, false,
                         false);
       }},
      {"_fused_adam_",
       [](const List& w, const List& g, State& s) {
         at::_fused_adam_(w, g, s.first, s.second, {}, s.steps, 0.1, 0.9, 0.99,
                          0.01, 1e-8, false, false);
       }},
      {"_fused_adam_.tensor_lr",
       [](const List& w, const List& g, State& s) {
         at::_fused_adam_(w, g, s.first, s.second, {}, s.steps, rate(), 0.9,
                          0.99, 0.01, 1e-8, false, false);
       }},
      {"_fused_adamw_",
       [](const List& w, const List& g, State& s) {
         at::_fused_adamw_(w, g, s.first, s.second, {}, s.steps, 0.1, 0.9, 0.99,
                           0.01, 1e-8, false, false);
       }},
      {"_fused_adamw_.tensor_lr",
       [](const List& w, const List& g, State& s) {
         at::_fused_adamw_(w, g, s.first, s.second, {}, s.steps, rate(), 0.9,
                           0.99, 0.01, 1e-8, false, false);
       }},
      {"_fused_adagrad_",
       [](const List& w, const List& g, State& s) {
         at::_fused_adagrad_(w, g, s.second, s.steps, 0.1, 0.01, 0.01, 1e-8,
                             false);
       }},
  };
}

std::vector<ListWriter> foreach_operators() {
  return {
      {"_foreach_add_", [](const List& w, const List& g,
                           State&) { at::_foreach_add_(w, g, -0.1); }},
      {"_foreach_sub_ of a list",
       [](const List& w, const List& g, State&) { at::_foreach_sub_(w, g); }},
      {"_foreach_mul_",
       [](const List& w, const List&, State&) { at::_foreach_mul_(w, 0.5); }},
      {"_foreach_addcdiv_",
       [](const List& w, const List& g, State& s) {
         at::_foreach_addcdiv_(w, g, s.second, -0.1);
       }},
      {"_foreach_lerp_", [](const List& w, const List& g,
                            State&) { at::_foreach_lerp_(w, g, 0.5); }},
      {"_foreach_copy_",
       [](const List& w, const List& g, State&) { at::_foreach_copy_(w, g); }},
      {"_foreach_zero_",
       [](const List& w, const List&, State&) { at::_foreach_zero_(w); }},
  };
}

std::vector<ListWriter> all_writers() {
  std::vector<ListWriter> all = fused_optimizers();
  for (ListWriter& writer : foreach_operators()) all.push_back(writer);
  return all;
}

struct PairImpl : nn::Module {
  nn::Linear a{nullptr}, b{nullptr};
  PairImpl() {
    a = register_module("a", nn::Linear(5, 7));
    b = register_module("b", nn::Linear(7, 3));
  }
  Tensor loss(const Tensor& x) {
    return b(torch::tanh(a(x))).to(torch::kFloat).square().mean();
  }
};
TORCH_MODULE(Pair);

struct Variant {
  const char* name;
  Reshard reshard;
  GatherCopy gather_copy;
};

Pair sharded_pair(const World& world, const Variant& variant) {
  Pair model;
  {
    const torch::NoGradGuard no_grad;
    int seed = 1;
    for (const Tensor& parameter : model->parameters()) {
      parameter.copy_(noise(seed++, parameter.sizes()) * 0.5);
    }
  }
  FullyShardOptions how{.mesh = init_device_mesh(world),
                        .reshard_after_forward = variant.reshard,
                        .mp_policy = {.param_dtype = torch::kBFloat16,
                                      .reduce_dtype = torch::kFloat},
                        .gather_copy = variant.gather_copy};
  fully_shard(*model->a, how);
  fully_shard(*model->b, how);
  fully_shard(*model, how);
  return model;
}

enum class Weights { shards, plain };

/// The losses of three steps. With `Weights::plain` the operator steps plain
/// tensors, which are then copied to the shards one by one.
List losses_of(const World& world, const ListWriter& writer,
               const Variant& variant, Weights weights) {
  Pair model = sharded_pair(world, variant);
  const List shards = model->parameters();
  State state{
      each(shards, [](const Tensor& w) { return torch::zeros(w.sizes()); }),
      each(shards, [](const Tensor& w) { return torch::ones(w.sizes()); }),
      each(shards, [](const Tensor&) { return torch::ones({}); })};
  List losses;
  for (int step = 0; step < 3; ++step) {
    const Tensor x = noise(10 * step + world.rank(), {4, 5}).to(torch::kFloat);
    const Tensor loss = model->loss(x);
    loss.backward();
    losses.push_back(loss.detach());
    const torch::NoGradGuard no_grad;
    (void)model->loss(x);  // gathers again what may be kept
    const List gradients =
        each(shards, [](const Tensor& w) { return w.grad(); });
    if (weights == Weights::shards) {
      writer.step(shards, gradients, state);
    } else {
      const List plain =
          each(shards, [](const Tensor& w) { return local(w).clone(); });
      writer.step(plain, each(gradients, local), state);
      for (size_t i = 0; i < plain.size(); ++i) shards[i].copy_(plain[i]);
    }
    model->zero_grad();
  }
  return losses;
}

TEST(ListWrites, AreSeenByTheNextForwardWhateverIsKept) {
  constexpr Variant kFreed{"", Reshard::always, GatherCopy::none};
  for (const int ranks : {1, 2}) {
    on_ranks(ranks, [&](const World& world) {
      for (const ListWriter& writer : all_writers()) {
        const List want = losses_of(world, writer, kFreed, Weights::plain);
        for (const Variant& variant :
             {Variant{"kept after forward", Reshard::never, GatherCopy::none},
              Variant{"a kept copy", Reshard::always, GatherCopy::kept},
              Variant{"both", Reshard::never, GatherCopy::kept}}) {
          const List got = losses_of(world, writer, variant, Weights::shards);
          for (size_t step = 0; step < want.size(); ++step) {
            EXPECT_TRUE(got[step].equal(want[step]))
                << writer.name << ", " << variant.name << ", step " << step
                << ": " << got[step].item<float>() << ", not "
                << want[step].item<float>();
          }
        }
      }
    });
  }
}

// Every operator of LibTorch's that writes a list -----------------------------

bool writes_a_list(const c10::Argument& argument) {
  return argument.alias_info() && argument.alias_info()->isWrite() &&
         argument.type()->kind() == c10::TypeKind::ListType;
}

/// Something for one argument; for lists of tensors `shards`, or plain ones
/// when the operator does not write them.
c10::IValue value_for(const c10::Argument& argument, const List& shards) {
  const c10::Type& type = *argument.type();
  switch (type.kind()) {
    case c10::TypeKind::ListType: {
      if (argument.name().starts_with("max_exp_avg")) return List{};
      if (argument.name() == "state_steps") {
        return each(shards, [](const Tensor&) { return torch::ones({}); });
      }
      if (type.containedType(0)->kind() != c10::TypeKind::TensorType) {
        c10::List<at::Scalar> ones;
        for (size_t i = 0; i < shards.size(); ++i) ones.push_back(1);
        return ones;
      }
      const bool weights = writes_a_list(argument) &&
                           (argument.name() == "self" || argument.is_out());
      if (weights) return shards;
      return each(shards,
                  [](const Tensor& w) { return torch::ones(w.sizes()); });
    }
    case c10::TypeKind::TensorType:
      return argument.name() == "scalars"
                 ? torch::ones({static_cast<int64_t>(shards.size())})
                 : torch::ones({});
    case c10::TypeKind::FloatType:
      return 0.5;
    case c10::TypeKind::BoolType:
      return false;
    case c10::TypeKind::OptionalType:
      return {};
    default:
      return at::Scalar(1);
  }
}

bool run_on(const c10::OperatorHandle& op, const List& shards) {
  torch::jit::Stack stack;
  try {
    for (const auto& argument : op.schema().arguments()) {
      stack.push_back(value_for(argument, shards));
    }
    const torch::NoGradGuard no_grad;
    op.callBoxed(stack);
    return true;
  } catch (const std::exception&) {
    return false;  // other arguments are needed, or it is refused on shards
  }
}

TEST(ListWrites, OfEveryOperatorMoveTheVersionOfTheShards) {
  on_ranks(1, [](const World& world) {
    auto& dispatcher = c10::Dispatcher::singleton();
    std::set<std::string> ran;
    for (const auto& name : dispatcher.getAllOpNames()) {
      const auto op = dispatcher.findSchema(name);
      if (!op || name.getNamespace() != "aten") continue;
      const auto& arguments = op->schema().arguments();
      if (std::none_of(arguments.begin(), arguments.end(), writes_a_list)) {
        continue;
      }
      nn::Linear model(5, 7);
      fully_shard(*model, {.mesh = init_device_mesh(world),
                           .start_check = StartCheck::off});
      const List shards = model->parameters();
      const int64_t before = shards[0]._version();
      if (!run_on(*op, shards)) continue;
      ran.insert(name.name);
      EXPECT_GT(shards[0]._version(), before) << name;
    }
    for (const char* name :
         {"aten::_fused_sgd_", "aten::_fused_adam_", "aten::_fused_adamw_",
          "aten::_fused_adagrad_", "aten::_foreach_add_",
          "aten::_foreach_copy_", "aten::_foreach_lerp_",
          "aten::_foreach_addcdiv_", "aten::_foreach_zero_"}) {
      EXPECT_TRUE(ran.contains(name)) << name << " did not run";
    }
    EXPECT_GT(ran.size(), 50U);
  });
}

}  // namespace
}  // namespace tessera::test
