// What a whole step takes is what resident_bytes says.
//
// The model is wide and its batch one row, so that activations are below 1 % of
// the bytes; each rank is a thread whose allocations are counted.
#include "tessera/optim/adamw.h"
#include "tessera/shard/resident_bytes.h"
#include "tests/memory/counting_allocator.h"
#include "tests/support/agreement.h"

namespace tessera::test {
namespace {

struct BlockImpl : nn::Module {
  nn::Linear in{nullptr}, out{nullptr};
  BlockImpl(int64_t width, int64_t inner) {
    in = register_module("in", nn::Linear(width, inner));
    out = register_module("out", nn::Linear(inner, width));
  }
  Tensor forward(const Tensor& x) { return x + out(torch::tanh(in(x))); }
};
TORCH_MODULE(Block);

constexpr int64_t kWidth = 192;

// An uneven width in the middle: padding and alignment count too.
struct StackImpl : nn::Module {
  nn::Linear first{nullptr}, last{nullptr};
  nn::ModuleList blocks;
  StackImpl() {
    first = register_module("first", nn::Linear(100, kWidth));
    blocks = register_module("blocks", nn::ModuleList());
    for (const int64_t inner : {kWidth, int64_t{301}, 2 * kWidth}) {
      blocks->push_back(Block(kWidth, inner));
    }
    last = register_module("last", nn::Linear(kWidth, 150));
  }
  Tensor forward(Tensor x) {
    x = first(x);
    for (const auto& block : *blocks) {
      x = block->as<BlockImpl>()->forward(x);
    }
    return last(x);
  }
};

struct Case {
  std::string name;
  int world_size = 2;
  Reshard reshard = Reshard::automatic;
  MixedPrecisionPolicy policy = {};
  std::string frozen = "none";  // parameters whose names begin so
};

Model make_stack(const Case& test) {
  Model model = build([] { return std::make_shared<StackImpl>(); });
  for (const auto& item : model->named_parameters()) {
    if (item.key().starts_with(test.frozen)) {
      item.value().set_requires_grad(false);
    }
  }
  return model;
}

void shard_stack(nn::Module& model, const Case& test, const World& world) {
  const FullyShardOptions options{.mesh = init_device_mesh(world),
                                  .reshard_after_forward = test.reshard,
                                  .mp_policy = test.policy};
  for (const auto& block : *dynamic_cast<StackImpl&>(model).blocks) {
    fully_shard(*block, options);
  }
  fully_shard(model, options);
}

int64_t bytes_of(c10::ScalarType dtype) {
  return static_cast<int64_t>(c10::elementSize(dtype));
}

UnitMemory memory_of(const Unit& unit, AfterForward after_forward) {
  UnitMemory memory{.after_forward = after_forward};
  for (const auto& group : unit.groups()) {
    const GroupOptions& options = group->options();
    memory.groups.push_back({.layout = group->layout(),
                             .master_bytes = bytes_of(options.master_dtype),
                             .compute_bytes = bytes_of(options.compute_dtype),
                             .reduce_bytes = bytes_of(options.reduce_dtype)});
    if (options.reduce_dtype == c10::kFloat) {  // sent as it was computed
      memory.groups.back().sent_bytes = bytes_of(options.compute_dtype);
    }
  }
  return memory;
}

/// The visit of a unit for the parameters whose names begin with `prefix`.
UnitVisit visit(const Unit& unit, size_t index, const std::string& prefix) {
  UnitVisit visit{.unit = index};
  for (const auto& group : unit.groups()) {
    for (size_t i = 0; i < group->size(); ++i) {
      if (!group->name(i).starts_with(prefix) || !group->trainable(i)) continue;
      visit.gradient_bytes += group->layout().parameters()[i].numel *
                              bytes_of(group->options().compute_dtype);
    }
  }
  return visit;
}

// What `reshard` promises, not what the units say of themselves.
AfterForward after_forward(Reshard reshard, size_t unit) {
  const bool kept =
      reshard == Reshard::never || (reshard == Reshard::automatic && unit == 0);
  return kept ? AfterForward::kept : AfterForward::freed;
}

StepMemory plan_of(nn::Module& model, Reshard reshard) {
  const auto units = units_below(model);  // the root, then the blocks
  StepMemory plan;
  for (size_t i = 0; i < units.size(); ++i) {
    plan.units.push_back(memory_of(*units[i], after_forward(reshard, i)));
    if (i > 0) plan.units[i].parent = 0;
  }
  plan.visits.push_back(visit(*units[0], 0, "first"));
  for (size_t i = 1; i < units.size(); ++i) {
    plan.visits.push_back(visit(*units[i], i, ""));
  }
  plan.visits.push_back(visit(*units[0], 0, "last"));
  for (const Tensor& shard : model.parameters()) {
    if (shard.requires_grad()) {
      plan.optimizer_bytes += 2 * static_cast<int64_t>(shard.nbytes());
    }
  }
  return plan;
}

void expect_within_3_percent(int64_t measured, int64_t planned,
                             const std::string& what) {
  EXPECT_NEAR(static_cast<double>(measured), static_cast<double>(planned),
              0.03 * static_cast<double>(planned))
      << what;
}

void run(const Case& test, const World& world) {
  Bytes bytes;
  const CountingAllocator::Scope scope(bytes);
  const Model model = make_stack(test);
  shard_stack(*model, test, world);
  AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  const ResidentBytes plan = resident_bytes(plan_of(*model, test.reshard));
  for (int step = 0; step < 3; ++step) {
    SCOPED_TRACE(str(test.name, ", rank ", world.rank(), ", step ", step));
    const bool has_state = step > 0;
    const int64_t before = bytes.now();
    if (has_state) {
      expect_within_3_percent(before, plan.between_steps, "between steps");
    }
    bytes.take_peak();
    const Tensor loss =
        dynamic_cast<StackImpl&>(*model)
            .forward(noise(world.rank(), {1, 100}).to(torch::kFloat))
            .pow(2)
            .mean();
    const int64_t forward_peak = bytes.take_peak();
    loss.backward();
    const int64_t backward_peak = bytes.take_peak();
    if (has_state) {
      expect_within_3_percent(forward_peak, plan.forward_peak, "forward");
      expect_within_3_percent(backward_peak, plan.backward_peak, "backward");
      expect_within_3_percent(bytes.now(), plan.after_backward,
                              "after backward");
    }
    optimizer.step();
    optimizer.zero_grad();
    if (has_state) {
      EXPECT_LE(bytes.take_peak(), plan.peak()) << "in the optimizer";
    }
  }
}

const MixedPrecisionPolicy kBf16 = {.param_dtype = torch::kBFloat16,
                                    .reduce_dtype = torch::kFloat};

class Peak : public testing::TestWithParam<Case> {};

TEST_P(Peak, OfAStepIsThatOfTheFormula) {
  at::set_num_threads(1);
  const CountingAllocator counting;
  on_ranks(GetParam().world_size,
           [](const World& world) { run(GetParam(), world); });
}

INSTANTIATE_TEST_SUITE_P(
    Memory, Peak,
    testing::Values(Case{"automatic"}, Case{"always", 2, Reshard::always},
                    Case{"never", 2, Reshard::never}, Case{"one_rank", 1},
                    Case{"three_ranks", 3},
                    Case{"five_ranks_kept", 5, Reshard::never},
                    Case{"bf16", 2, Reshard::automatic, kBf16},
                    Case{"bf16_three_ranks", 3, Reshard::automatic, kBf16},
                    Case{"summed_in_bf16",
                         2,
                         Reshard::automatic,
                         {.param_dtype = torch::kBFloat16}},
                    Case{"frozen_block", 2, Reshard::automatic, {}, "blocks.1"},
                    Case{"frozen_root", 2, Reshard::automatic, {}, "last"}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace tessera::test
