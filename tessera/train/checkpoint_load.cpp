#include "tessera/train/checkpoint_load.h"

#include <filesystem>
#include <memory>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/reader.h"
#include "tessera/train/agree_on_failure.h"
#include "tessera/train/checkpoint_folder.h"
#include "tessera/train/config_changes.h"
#include "tessera/train/random_state.h"

namespace tessera::train {
namespace {

using checkpoint::CheckpointReader;

std::string resolve(const std::string& resume, const TrainConfig& config) {
  if (resume == "never") return "";
  if (resume == "auto") {
    return checkpoint::latest(checkpoint_folder(config.output.folder))
        .value_or("");
  }
  if (std::filesystem::exists(resume + "/.metadata")) return resume;
  for (const std::string& folder : {checkpoint_folder(resume), resume}) {
    if (const auto path = checkpoint::latest(folder)) return *path;
  }
  throw Failure(ExitCode::cannot_resume,
                str("--resume ", resume,
                    ": there is no complete checkpoint; give 'auto', 'never', "
                    "a folder like run/checkpoints/step-200, or that of a "
                    "run."));
}

Value read(const CheckpointReader& reader, const std::string& name) {
  const std::string key = "trainer." + name;
  require(reader.metadata().values.contains(key), ExitCode::cannot_resume, [&] {
    return str("'", reader.path(), "' has no '", key,
               "': it was not saved by tessera train, and a run cannot go on "
               "from it.");
  });
  return reader.read_value(key, checkpoint::OnUnknown::refuse);
}

ResumePoint read_point(const std::string& path) {
  const CheckpointReader reader(path);
  const auto number = [&](const char* name) {
    return read(reader, name).as_int();
  };
  const Value best = read(reader, "best_held_out");
  ResumePoint point;
  point.path = path;
  point.save = reader.fingerprint();
  point.counters = {.step = number("step"),
                    .samples = number("samples"),
                    .tokens = number("tokens"),
                    .num_skipped = number("num_skipped")};
  if (!best.is_none()) point.counters.best_held_out = best.as_double();
  point.world_size = number("world_size");
  point.config = read(reader, "config").as_text();
  point.text = read(reader, "text").as_text();
  return point;
}

/// Errors of the checkpoint are reasons not to resume.
template <class Body>
auto or_cannot_resume(Body&& body) {
  try {
    return body();
  } catch (const CheckpointError& error) {
    throw AgreedFailure(ExitCode::cannot_resume, error.what());
  }
}

std::string joined(const std::vector<ConfigChange>& changes) {
  std::string text;
  for (const ConfigChange& change : changes) {
    text += str(text.empty() ? "" : ", ", describe(change));
  }
  return text;
}

/// What a load sets in an optimizer and a config decides: put back.
class KeepOptions {
 public:
  explicit KeepOptions(torch::optim::Optimizer& optimizer)
      : optimizer_(optimizer) {
    for (auto& group : optimizer.param_groups()) {
      options_.push_back(group.options().clone());
    }
  }
  void put_back() {
    auto& groups = optimizer_.param_groups();
    for (size_t i = 0; i < groups.size(); ++i) {
      groups[i].set_options(std::move(options_[i]));
    }
  }

 private:
  torch::optim::Optimizer& optimizer_;
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options_;
};

}  // namespace

std::optional<ResumePoint> find_checkpoint(const std::string& resume,
                                           const TrainConfig& config,
                                           const World& world) {
  std::string path;
  agree_on_failure(world, [&] {
    if (world.rank() == 0) path = resolve(resume, config);
  });
  path = world.exchange(str("find_checkpoint/", world.next_id()), path)[0];
  if (path.empty()) return std::nullopt;
  ResumePoint point;
  agree_on_failure(
      world, [&] { or_cannot_resume([&] { point = read_point(path); }); });
  return point;
}

std::vector<std::string> check_checkpoint(const ResumePoint& point,
                                          const TrainConfig& config,
                                          const std::string& text,
                                          int world_size) {
  const auto changes = config_changes(point.config, config.toml);
  std::vector<ConfigChange> refused, allowed;
  for (const ConfigChange& change : changes) {
    (shapes_model(change.key) ? refused : allowed).push_back(change);
  }
  require(refused.empty(), ExitCode::cannot_resume, [&] {
    return str("'", point.path, "' is of another model: ", joined(refused),
               "; resume with its own values, or train anew with --resume "
               "never.");
  });
  std::vector<std::string> notes;
  if (point.world_size == 0) {
    notes.emplace_back("imported weights, which no run has trained yet");
    return notes;
  }
  if (point.world_size != world_size) {
    notes.push_back(str("saved on ", point.world_size, ", goes on on ",
                        world_size, world_size == 1 ? " rank" : " ranks"));
  }
  if (!allowed.empty()) notes.push_back("changed: " + joined(allowed));
  if (point.text != text) {
    notes.emplace_back("another text, taken from its first sample on");
  }
  return notes;
}

void checkpoint_load(const ResumePoint& point, TrainState& state, uint64_t seed,
                     const World& world) {
  State all = state_of(state.model, state.optimizer);
  if (point.world_size == world.size()) {
    all.add(str("random.", world.rank()),
            std::make_shared<ValueState>(
                [&] { return random_state(world.device()); },
                [&](const Value& value) {
                  set_random_state(value, world.device());
                }));
  } else {
    seed_random(seed, point.counters.step, world.rank());
  }
  KeepOptions options(state.optimizer);
  or_cannot_resume([&] {
    (void)checkpoint::load(point.path, all,
                           {.world = world, .save = point.save});
  });
  options.put_back();
  state.counters = point.counters;
}

}  // namespace tessera::train
