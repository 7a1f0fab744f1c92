#include "tests/agreement/train.h"

#include <cmath>
#include <mutex>

#include "tessera/mesh/device_mesh.h"
#include "tessera/module/on_meta.h"
#include "tessera/optim/adamw.h"
#include "tessera/optim/clip_grad_norm.h"
#include "tessera/optim/grad_scaler.h"
#include "tessera/shard/context.h"
#include "tessera/shard/find_units.h"
#include "tessera/shard/full_parameters.h"
#include "tessera/shard/fully_shard.h"
#include "tessera/shard/materialize.h"

namespace agreement {

using tessera::FullyShardOptions;
using tessera::World;

namespace {

constexpr int64_t kBatch = 12;  // divides by 1, 2, 3 and 4 ranks
constexpr uint64_t kSeed = 5;

std::shared_ptr<Model> build(const Job& job) {
  if (job.build == Build::meta) {
    return tessera::on_meta([&] { return job.model.make(); });
  }
  // The random state is the process's, and ranks are threads.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::manual_seed(kSeed);
  return job.model.make();
}

// LibTorch's parameters() lists a tied parameter once for each owner, and its
// optimizers would step it as often.
std::vector<Tensor> distinct_parameters(Model& model) {
  std::vector<Tensor> distinct;
  for (const Tensor& parameter : model.parameters()) {
    const auto same = [&](const Tensor& t) { return t.is_same(parameter); };
    if (std::none_of(distinct.begin(), distinct.end(), same)) {
      distinct.push_back(parameter);
    }
  }
  return distinct;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Job& job,
                                                        Model& model) {
  const auto parameters = distinct_parameters(model);
  const auto options = torch::optim::AdamWOptions(1e-2).weight_decay(0.1);
  switch (job.optimizer) {
    case Optimizer::sgd:
      return std::make_unique<torch::optim::SGD>(parameters, 0.1);
    case Optimizer::adamw:
      return std::make_unique<torch::optim::AdamW>(parameters, options);
    case Optimizer::fused_adamw:
      return std::make_unique<tessera::AdamW>(parameters, options);
  }
  return nullptr;
}

// Micro-batches of one step, this rank's rows of each.
class Data {
 public:
  Data(int rank, int ranks)
      : rank_(rank),
        ranks_(ranks),
        random_(at::detail::createCPUGenerator(9)) {}

  std::pair<Tensor, Tensor> next() {
    const Tensor tokens =
        torch::randint(kVocab, {kBatch, kSeq + 1}, random_, torch::kLong);
    const Tensor mine =
        tokens.narrow(0, rank_ * kBatch / ranks_, kBatch / ranks_);
    return {mine.narrow(1, 0, kSeq), mine.narrow(1, 1, kSeq)};
  }

 private:
  int rank_;
  int ranks_;
  at::Generator random_;
};

Tensor loss_of(const Job& job, Model& model, Data& data) {
  const auto [input, target] = data.next();
  return model.loss(input.to(job.device), target.to(job.device)) /
         job.accumulate;
}

void record_weights(Model& model, Outcome& outcome) {
  for (const auto& item : model.named_parameters()) {
    outcome.weights[item.key()] = item.value().detach().cpu().clone();
  }
}

double mean_over_ranks(const World& world, const std::string& key,
                       double value) {
  double sum = 0;
  std::ostringstream text;
  text.precision(17);
  text << value;
  for (const std::string& one : world.exchange(key, text.str())) {
    sum += std::stod(one);
  }
  return sum / world.size();
}

// Bytes of full parameters gathered right now.
int64_t gathered_bytes(Model& model) {
  int64_t bytes = 0;
  for (const auto& unit : tessera::units_below(model)) {
    if (unit->gathered()) bytes += unit->full_bytes();
  }
  return bytes;
}

void shard(const Job& job, Model& model, const tessera::DeviceMesh& mesh) {
  const auto placement = [&](const Tensor& parameter) {
    return parameter.dim() > job.shard_dim
               ? std::optional(tessera::Shard{job.shard_dim})
               : std::nullopt;
  };
  FullyShardOptions options{.mesh = mesh,
                            .reshard_after_forward = job.reshard,
                            .shard_placement_fn = placement,
                            .offload_policy = job.offload,
                            .gather_transform = job.gather_transform,
                            .debug = tessera::Debug::poison_memory};
  if (job.param_dtype) {
    options.mp_policy = {.param_dtype = job.param_dtype,
                         .reduce_dtype = torch::kFloat};
  }
  if (job.spread == Spread::replicate) {
    tessera::replicate(model, options);
    return;
  }
  for (nn::Module* unit : model.units()) tessera::fully_shard(*unit, options);
  tessera::fully_shard(model, options);
}

void accumulate(const Job& job, Model& model, bool last) {
  if (job.accumulate_by == Accumulate::without_sync) {
    tessera::set_requires_gradient_sync(
        model, last ? tessera::Sync::on : tessera::Sync::off);
  } else {
    tessera::set_requires_all_reduce(
        model, last ? tessera::AllReduce::on : tessera::AllReduce::off);
  }
}

/// One optimizer step, through a GradScaler where the job says so.
class Update {
 public:
  Update(const Job& job, const World& world, Model& model)
      : job_(job),
        world_(world),
        optimizer_(make_optimizer(job, model)),
        scaler_({.init_scale = 1024,
                 .scaling = job.overflow_at ? tessera::Scaling::on
                                            : tessera::Scaling::off}) {}

  void backward(const Tensor& loss, int step) {
    const bool spoilt =
        step == job_.overflow_at && world_.rank() == world_.size() - 1;
    const Tensor scaled = scaler_.scale(loss);
    (spoilt ? scaled * INFINITY : scaled).backward();
  }

  /// Gradients as they are without a scale.
  void unscale() { scaler_.unscale_(*optimizer_); }

  void step() {
    scaler_.step(*optimizer_);
    scaler_.update();
    optimizer_->zero_grad();
  }

 private:
  const Job& job_;
  const World& world_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  tessera::GradScaler scaler_;
};

void report_units(Model& model, Outcome& outcome) {
  for (const auto& unit : tessera::units_below(model)) {
    const bool is_root = unit->parent() == nullptr;
    outcome.units.push_back({unit->name(), is_root, unit->trainable(),
                             unit->counts().gathers, unit->counts().reduces});
    auto& bytes = is_root ? outcome.root_bytes : outcome.largest_unit_bytes;
    bytes = std::max(bytes, unit->full_bytes());
  }
  outcome.bytes_after = gathered_bytes(model);
}

}  // namespace

std::string Job::describe() const {
  const char* const optimizers[] = {"sgd", "adamw", "fused_adamw"};
  const char* const reshards[] = {"automatic", "always", "never"};
  const int over = reshard.ranks().value_or(0);
  return tessera::str(
      model.name, ", ", optimizers[static_cast<int>(optimizer)], ", reshard ",
      reshards[static_cast<int>(reshard.policy())], " over ", over,
      build == Build::meta ? ", meta" : "", ", cut along ", shard_dim,
      offload ? ", offloaded" : "",
      spread == Spread::replicate ? ", replicate" : "", ", accumulate ",
      accumulate,
      accumulate_by == Accumulate::without_all_reduce ? " without all-reduce"
                                                      : "",
      clip ? ", clipped" : "", param_dtype ? ", " : "",
      param_dtype ? c10::toString(*param_dtype) : "",
      gather_transform ? ", float8 gathers" : "",
      overflow_at ? ", scaled, an overflow" : "");
}

Outcome train_plain(const Job& job) {
  const auto model = build(job);
  if (job.build == Build::meta) {
    tessera::materialize(*model, {.seed = kSeed, .device = job.device});
  }
  model->to(job.device);  // of a model on meta, the tables that it computed
  const auto optimizer = make_optimizer(job, *model);
  Data data(0, 1);
  Outcome outcome;
  for (int step = 0; step < job.steps; ++step) {
    double loss = 0;
    for (int micro = 0; micro < job.accumulate; ++micro) {
      const Tensor one = loss_of(job, *model, data);
      one.backward();
      loss += one.item<double>();
    }
    outcome.losses.push_back(loss);
    if (job.clip) {
      outcome.norms.push_back(
          nn::utils::clip_grad_norm_(distinct_parameters(*model), *job.clip));
    }
    if (step != job.overflow_at) optimizer->step();
    optimizer->zero_grad();
  }
  record_weights(*model, outcome);
  return outcome;
}

Outcome train_sharded(const Job& job, const tessera::DeviceMesh& mesh) {
  const World& world = mesh.world();
  const auto model = build(job);
  shard(job, *model, mesh);
  if (job.build == Build::meta) tessera::materialize(*model, {.seed = kSeed});
  tessera::set_reshard_after_backward(*model, job.after_backward);
  Update update(job, world, *model);
  Data data(world.rank(), world.size());
  Outcome outcome;
  model->on_block_backward = [&] {
    outcome.peak_backward_bytes =
        std::max(outcome.peak_backward_bytes, gathered_bytes(*model));
  };
  for (int step = 0; step < job.steps; ++step) {
    for (const auto& unit : tessera::units_below(*model)) unit->reset_counts();
    outcome.peak_backward_bytes = 0;
    double loss = 0;
    for (int micro = 0; micro < job.accumulate; ++micro) {
      const bool last = micro + 1 == job.accumulate;
      accumulate(job, *model, last);
      const Tensor one = loss_of(job, *model, data);
      update.backward(one, step);
      loss += one.item<double>();
    }
    update.unscale();
    outcome.losses.push_back(
        mean_over_ranks(world, tessera::str("loss ", step), loss));
    if (job.clip) {
      outcome.norms.push_back(
          tessera::clip_grad_norm_(model->parameters(), *job.clip)
              .item<double>());
    }
    update.step();
  }
  report_units(*model, outcome);
  tessera::FullParameters whole(*model, tessera::Write::discard);
  if (world.rank() == 0) record_weights(*model, outcome);
  return outcome;
}

}  // namespace agreement
