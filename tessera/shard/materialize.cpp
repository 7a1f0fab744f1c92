#include "tessera/shard/materialize.h"

#include <ATen/Context.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "tessera/base/error.h"
#include "tessera/base/fnv_hash.h"
#include "tessera/module/initializers.h"
#include "tessera/module/meta_memory.h"
#include "tessera/module/traversal.h"
#include "tessera/shard/context.h"
#include "tessera/shard/find_units.h"
#include "tessera/shard/full_parameters.h"

namespace tessera {

namespace {

uint64_t seed_for(uint64_t seed, const std::string& name) {
  uint64_t hash = FnvHash(FnvHash::kStart ^ seed).add_characters(name).value();
  hash ^= hash >> 31;
  return hash * 0x9e3779b97f4a7c15ull;
}

// The random state that initialisers draw from, seeded while this lives.
// torch::nn::init takes no generator and the CPU's is process-wide, so one
// thread at a time; never across a collective, for which ranks that are threads
// would wait with the lock held.
class SeededGenerators {
 public:
  SeededGenerators(c10::Device device, uint64_t seed) : lock_(mutex()) {
    generators_.push_back(
        at::globalContext().defaultGenerator(c10::Device(c10::kCPU)));
    if (!device.is_cpu()) {
      generators_.push_back(at::globalContext().defaultGenerator(device));
    }
    for (const auto& generator : generators_) {
      states_.push_back(generator.get_state());
    }
    for (auto& generator : generators_) generator.set_current_seed(seed);
  }
  ~SeededGenerators() {
    for (size_t i = 0; i < generators_.size(); ++i) {
      generators_[i].set_state(states_[i]);
    }
  }
  SeededGenerators(const SeededGenerators&) = delete;
  SeededGenerators& operator=(const SeededGenerators&) = delete;

 private:
  static std::mutex& mutex() {
    static std::mutex shared;
    return shared;
  }

  std::lock_guard<std::mutex> lock_;
  std::vector<at::Generator> generators_;
  std::vector<at::Tensor> states_;
};

}  // namespace

class UnitMaterializer {
 public:
  UnitMaterializer(torch::nn::Module& model, const MaterializeOptions& options)
      : model_(model), options_(options), modules_(named_modules(model)) {
    std::reverse(modules_.begin(), modules_.end());  // children first
  }

  void run() {
    torch::NoGradGuard no_grad;
    device_ = find_device();
    give_memory();
    for (const auto& unit : units_below(model_)) materialize_unit(unit);
    for (const NamedModule& named : modules_) {
      if (plain_.contains(named.module)) initialize(named);
    }
    check_plain();
  }

 private:
  c10::Device find_device() const {
    if (options_.device) return *options_.device;
    const auto units = units_below(model_);
    return units.empty() ? c10::Device(c10::kCPU)
                         : units[0]->context()->lanes()->device;
  }

  // Buffers, and parameters that no unit holds. A tied one has several modules,
  // each of which may be the one whose initialiser knows it.
  void give_memory() {
    for (const NamedModule& named : modules_) {
      const auto buffers = named.module->named_buffers(/*recurse=*/false);
      const auto parameters = named.module->named_parameters(/*recurse=*/false);
      for (const auto& item : buffers) {
        give_memory(named, item.key(), item.value(), "buffer");
      }
      for (const auto& item : parameters) {
        give_memory(named, item.key(), item.value(), "parameter");
      }
    }
  }

  void give_memory(const NamedModule& named, const std::string& key,
                   const at::Tensor& tensor, const char* what) {
    if (!tensor.defined()) return;
    if (tensor.is_meta()) {
      give_unset_memory(tensor, device_);
      given_.emplace(
          tensor.unsafeGetTensorImpl(),
          Given{str(what, " '", join_names(named.name, key), "'"), tensor});
    }
    if (given_.contains(tensor.unsafeGetTensorImpl())) {
      plain_.insert(named.module);
    }
  }

  // Modules that directly own a parameter of `unit`.
  std::vector<NamedModule> owners_of(const std::shared_ptr<Unit>& unit) const {
    std::vector<NamedModule> owners;
    for (const NamedModule& named : modules_) {
      for (const auto& parameter : named.module->parameters(false)) {
        if (unit_of(parameter) != unit) continue;
        owners.push_back(named);
        break;
      }
    }
    return owners;
  }

  void materialize_unit(const std::shared_ptr<Unit>& unit) {
    const auto& groups = unit->groups();
    if (std::all_of(groups.begin(), groups.end(),
                    [](const auto& group) { return group->has_values(); })) {
      return;
    }
    const auto owners = owners_of(unit);
    // A module whose parameters lie in several units (tied ones) writes them
    // all; the others' writes are thrown away.
    std::vector<std::unique_ptr<FullParameters>> others;
    for (const auto& other : units_sharing(owners, unit)) {
      others.push_back(std::unique_ptr<FullParameters>(
          new FullParameters(model_, other, FullBuffer::Values::gathered)));
      others.back()->write_ = Write::discard;
    }
    FullParameters scope(model_, unit, FullBuffer::Values::unset);
    for (const NamedModule& owner : owners) {
      initialize(owner);
      plain_.erase(owner.module);
    }
    settle_unheld(*unit, scope);
    check(*unit, scope);
  }

  // A parameter that no member holds (its member was tied to another) is read
  // by nobody; no initialiser reaches it.
  static void settle_unheld(const Unit& unit, const FullParameters& scope) {
    for (const auto& group : unit.groups()) {
      for (size_t i = 0; i < group->size(); ++i) {
        if (!group->full(i).defined()) scope.value(*group, i).zero_();
      }
    }
  }

  static std::vector<std::shared_ptr<Unit>> units_sharing(
      const std::vector<NamedModule>& owners,
      const std::shared_ptr<Unit>& unit) {
    std::vector<std::shared_ptr<Unit>> others;
    for (const NamedModule& owner : owners) {
      for (const auto& parameter : owner.module->parameters(false)) {
        auto other = unit_of(parameter);
        if (other && other != unit &&
            std::find(others.begin(), others.end(), other) == others.end()) {
          others.push_back(std::move(other));
        }
      }
    }
    return others;
  }

  // Nearest first.
  std::vector<torch::nn::Module*> ancestors_of(const NamedModule& named) const {
    std::vector<torch::nn::Module*> ancestors;
    for (const NamedModule& other : modules_) {  // children first
      const bool is_above = other.name.empty()
                                ? !named.name.empty()
                                : named.name.starts_with(other.name + ".");
      if (is_above) ancestors.push_back(other.module);
    }
    return ancestors;
  }

  void initialize(const NamedModule& named) {
    const SeededGenerators seeded(device_, seed_for(options_.seed, named.name));
    // Not the modules below, which may lie in units that are freed now: what
    // this one's constructor does to them is done when their turn comes.
    (void)initialize_module(*named.module, ancestors_of(named));
    if (options_.init) options_.init(*named.module, named.name);
  }

  static void fail(const std::string& what) {
    throw InvalidState(
        str("materialize: ", what,
            " has no value after its module's "
            "initialiser. Derive the module from Initializable, or set the "
            "value in MaterializeOptions::init."));
  }

  static void check(const Unit& unit, FullParameters& scope) {
    for (const auto& group : unit.groups()) {
      for (size_t i = 0; i < group->size(); ++i) {
        if (is_unset(scope.value(*group, i))) {
          scope.write_ = Write::discard;
          fail(str("parameter '", group->name(i), "'"));
        }
      }
    }
  }

  void check_plain() const {
    for (const auto& [impl, given] : given_) {
      if (!is_unset(given.tensor)) continue;
      // Held by a dictionary and by `given` only: as in settle_unheld.
      if (given.tensor.use_count() > 2) fail(given.what);
      given.tensor.zero_();
    }
  }

  torch::nn::Module& model_;
  const MaterializeOptions& options_;
  std::vector<NamedModule> modules_;
  c10::Device device_ = c10::kCPU;
  struct Given {
    std::string what;
    at::Tensor tensor;
  };
  std::unordered_map<c10::TensorImpl*, Given> given_;
  std::unordered_set<torch::nn::Module*> plain_;
};

void materialize(torch::nn::Module& model, const MaterializeOptions& options) {
  UnitMaterializer(model, options).run();
}

}  // namespace tessera
