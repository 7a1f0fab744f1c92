#include "tessera/checkpoint/checkpoint.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/checkpoint/parallel.h"
#include "tessera/checkpoint/state_source.h"
#include "tessera/checkpoint/tensor_load.h"
#include "tessera/device/stream.h"

namespace tessera::checkpoint {

void save(const std::string& path, const State& state,
          const SaveOptions& options) {
  const at::NoGradGuard no_grad;
  const Peers peers = peers_of(state, options.world);
  std::optional<StateSource> source;
  FolderSave save(path, peers,
                  [&] {
                    source.emplace(state);
                    return source->offer();
                  },
                  {.existing = options.existing,
                   .num_threads = options.num_threads,
                   .storage = options.storage});
  save.commit(peers, [&] { return save.write(source->source()); });
}

namespace {

// Times that a save may end between the first rank and the last.
constexpr int kMostPlans = 8;

// One part of the state, and where the load puts its tensors.
struct Target {
  std::string name;
  Stateful* part = nullptr;
  Stored stored;
  StateDict dict;
};

struct ReadJob {
  std::string key;
  const StateTensor* tensor = nullptr;
  std::pair<std::string, uint64_t> place = {};  // file and offset of the first
};

class Load {
 public:
  Load(const std::string& path, const State& state, const LoadOptions& options)
      : reader_(path, options.storage), options_(options) {
    for (const auto& [name, part] : state.parts()) {
      targets_.push_back({name, part.get(), stored_below(name), {}});
    }
  }

  [[nodiscard]] uint64_t fingerprint() const { return reader_.fingerprint(); }

  // Finds all that can be known before data is read.
  KeyReport plan() {
    std::vector<std::string> wanted;
    std::set<std::string> names;
    for (Target& target : targets_) {
      names.insert(target.name);
      target.dict = target.part->targets(target.stored);
      for (const StateEntry& entry : target.dict) {
        wanted.push_back(key_in(target.name, key_of(entry.path)));
        add_job(wanted.back(), entry);
      }
    }
    KeyReport report = compare_keys(reader_.metadata(), wanted, names);
    std::erase_if(report.missing, [&](const std::string& key) {
      return inside_of_values_.contains(key);
    });
    const bool same = report.missing.empty() && report.unexpected.empty();
    require<CheckpointError>(options_.strict == Strict::no || same,
                             [&] { return describe(report); });
    std::ranges::stable_sort(jobs_, {}, &ReadJob::place);  // files end to end
    return report;
  }

  void read() {
    std::vector<std::unique_ptr<TensorLoad>> loads(jobs_.size());
    constexpr size_t kWaiting = 4;  // small reads wait more than they compute
    parallel_for(jobs_.size(), kWaiting * options_.num_threads, [&](size_t i) {
      loads[i] =
          std::make_unique<TensorLoad>(reader_, jobs_[i].key, *jobs_[i].tensor);
    });
    std::vector<std::pair<TensorLoad*, size_t>> parts;
    for (const auto& load : loads) {
      for (size_t part = 0; part < load->num_parts(); ++part) {
        parts.emplace_back(load.get(), part);
      }
    }
    const c10::Stream stream = stream_of_targets();
    parallel_for(parts.size(), options_.num_threads, [&](size_t i) {
      const at::NoGradGuard no_grad;
      const StreamScope scope(stream);
      parts[i].first->read(parts[i].second);
    });
    for (const ReadJob& job : jobs_) {
      job.tensor->local.unsafeGetTensorImpl()->bump_version();
    }
    for (Target& target : targets_) {
      target.part->loaded(target.dict, target.stored);
    }
  }

 private:
  static std::string key_in(const std::string& name, const std::string& key) {
    return key.empty() ? name : name + "." + key;
  }

  // The caller's: what it asked for before comes before the load, what it asks
  // for later comes after.
  c10::Stream stream_of_targets() const {
    for (const ReadJob& job : jobs_) {
      const c10::Device device = job.tensor->local.device();
      if (!device.is_cpu()) return current_stream(device);
    }
    return current_stream(c10::kCPU);
  }

  // What the checkpoint holds at `name` or below it.
  Stored stored_below(const std::string& name) {
    const Metadata& metadata = reader_.metadata();
    Stored stored;
    const std::string prefix = name + ".";
    const auto relative =
        [&](const std::string& key) -> std::optional<std::string> {
      if (key == name) return "";
      if (!key.starts_with(prefix)) return std::nullopt;
      return key.substr(prefix.size());
    };
    for (const auto& [key, tensor] : metadata.tensors) {
      if (const auto below = relative(key)) stored.tensors.insert(*below);
    }
    for (const auto& [key, place] : metadata.values) {
      const auto below = relative(key);
      if (!below) continue;
      const auto path = metadata.paths.find(key);
      const bool known = path != metadata.paths.end() && !path->second.empty();
      Path steps;
      if (known) {
        steps.assign(path->second.begin() + 1, path->second.end());
      } else if (!below->empty()) {
        steps = {*below};
      }
      add_value_to(stored, name, *below, steps,
                   reader_.read_value(key, OnUnknown::keep));
    }
    return stored;
  }

  // A dict is one item where PyTorch before 2.4 found no tensor in it, and with
  // flatten_state_dict=False: its leaves count as stored.
  void add_value_to(Stored& stored, const std::string& name,
                    const std::string& key, const Path& path, Value value) {
    StateDict leaves;
    add_value(leaves, path, value);
    const bool one = leaves.size() == 1 && leaves[0].path == path;
    if (one) {
      stored.values[key] = std::move(value);
      stored.value_paths[key] = path;
      return;
    }
    for (StateEntry& leaf : leaves) {
      const std::string below = key_of(leaf.path);
      stored.values[below] = std::get<Value>(std::move(leaf.leaf));
      stored.value_paths[below] = leaf.path;
      inside_of_values_.insert(key_in(name, below));
    }
  }

  void add_job(const std::string& key, const StateEntry& entry) {
    const auto* tensor = std::get_if<StateTensor>(&entry.leaf);
    if (tensor == nullptr) return;
    const Metadata& metadata = reader_.metadata();
    if (!metadata.tensors.contains(key) && !metadata.values.contains(key)) {
      return;  // missing
    }
    check_wanted(metadata, {key, tensor->sizes, tensor->boxes});
    ReadJob job{key, tensor};
    const std::vector<StoredBox>& stored = metadata.tensors.at(key).boxes;
    for (const Box& box : tensor->boxes) {
      for (const Overlap& overlap : find_overlaps(stored, box, key)) {
        const ItemPlace& place = stored[overlap.stored].place;
        if (job.place.first.empty()) job.place = {place.file, place.offset};
      }
    }
    jobs_.push_back(std::move(job));
  }

  std::string describe(const KeyReport& report) const {
    std::string text;
    if (!report.missing.empty()) {
      text += str("the checkpoint lacks ", show_keys(report.missing), ". ");
    }
    if (!report.unexpected.empty()) {
      text += str("the checkpoint has ", show_keys(report.unexpected),
                  ", which the state has not. ");
    }
    return text + "Strict::no leaves such as they are.";
  }

  CheckpointReader reader_;
  LoadOptions options_;
  std::vector<Target> targets_;
  std::vector<ReadJob> jobs_;
  std::set<std::string> inside_of_values_;  // keys of parts of items
};

}  // namespace

KeyReport load(const std::string& path, const State& state,
               const LoadOptions& options) {
  const at::NoGradGuard no_grad;
  const Peers peers = peers_of(state, options.world);
  const std::string what = str("checkpoint::load of '", path, "'");
  std::optional<Load> load;
  KeyReport report;
  for (int tries = 1;; ++tries) {
    const auto saves = all_or_none(peers, what, [&] {
      load.emplace(path, state, options);
      require<CheckpointError>(
          options.save.value_or(load->fingerprint()) == load->fingerprint(),
          [] {
            return str("another save has taken its place since it was chosen.");
          });
      report = load->plan();
      return std::to_string(load->fingerprint());
    });
    // A save may have ended when some ranks had opened the one before.
    if (std::ranges::count(saves, saves[0]) == std::ssize(saves)) break;
    require<CheckpointError>(tries < kMostPlans, [&] {
      return str(what, ": the ranks opened different saves, ", tries,
                 " times. Give all ranks the same path, and no other job one "
                 "to save to.");
    });
  }
  (void)all_or_none(peers, what, [&] {
    load->read();
    return std::string();
  });
  return report;
}

}  // namespace tessera::checkpoint
