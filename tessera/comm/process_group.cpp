#include "tessera/comm/process_group.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/backend_name.h"
#include "tessera/comm/process_group_impl.h"
#include "tessera/comm/world_state.h"

namespace tessera::distributed {
namespace {

// As many as torch.distributed gives a Gloo group.
constexpr int kGlooThreads = 2;

using Impl = ProcessGroup::Impl;

std::string join(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += str(text.empty() ? "" : ",", rank);
  return text;
}

const std::shared_ptr<World::State>& checked(const World& world,
                                             const char* call) {
  require<InvalidState>(world.defined(), [&] {
    return str(call, ": this World is empty; make it by init_distributed().");
  });
  return world.state();
}

std::vector<int> checked_ranks(std::vector<int> ranks, int world_size) {
  if (ranks.empty()) {
    ranks.resize(world_size);
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  const std::string got = join(ranks);
  std::sort(ranks.begin(), ranks.end());
  const bool distinct =
      std::adjacent_find(ranks.begin(), ranks.end()) == ranks.end();
  require<InvalidArgument>(
      distinct && ranks.front() >= 0 && ranks.back() < world_size, [&] {
        return str("new_group: got the ranks {", got,
                   "}; expected distinct ranks of 0..", world_size - 1, ".");
      });
  return ranks;
}

std::string next_name(World::State& world, const std::vector<int>& ranks,
                      Callers callers) {
  const std::lock_guard lock(world.group_names.mutex);
  if (callers == Callers::all_ranks) {
    return str("group ", world.group_names.next++);
  }
  const std::string members = join(ranks);
  return str("group {", members, "} ", world.group_names.uses[members]++);
}

// Unlike calls would connect to nobody, or to the wrong ranks.
void compare(const std::string& own, const std::vector<std::string>& all,
             int rank) {
  for (size_t other = 0; other < all.size(); ++other) {
    require<InvalidArgument>(all[other] == own, [&] {
      return str("new_group: the callers ask for unlike groups: rank ", rank,
                 " for ", own, ", but rank ", other, " for ", all[other],
                 ". All make the same groups in the same order, members or ",
                 "not; with Callers::members, the members alone.");
    });
  }
}

std::string describe(const std::vector<int>& ranks,
                     const GroupOptions& options) {
  return str("{", join(ranks), "}",
             options.backend.empty() ? "" : " over " + options.backend);
}

void meet_callers(World::State& world, const Impl& group,
                  const GroupOptions& options) {
  const std::string own = describe(group.ranks, options);
  const auto all =
      world.meet(options.callers == Callers::all_ranks ? "world" : group.name,
                 "new_group", {.unit = options.description}, [&] {
                   return options.callers == Callers::all_ranks
                              ? world.rendezvous().exchange("new_group", own)
                              : group.rendezvous->exchange("new_group", own);
                 });
  compare(own, all, world.place.rank);
}

BackendMaker maker_of(const std::shared_ptr<World::State>& world,
                      const std::string& backend) {
  if (backend == "gloo") {
    return [world = world.get()](const BackendPlace& at) {
      return make_gloo_backend(at, world->gloo_devices());
    };
  }
  if (backend == "nccl") {
    return [device = world->place.device](const BackendPlace& at) {
      return make_nccl_backend(at, device);
    };
  }
  const std::lock_guard lock(world->group_names.mutex);
  return world->group_names.makers.at(backend);
}

void connect(Impl& group, const std::vector<BackendChoice>& choices,
             StreamPriority priority) {
  World::State& world = *group.world;
  std::map<std::string, c10::intrusive_ptr<c10d::Backend>> made;
  for (const BackendChoice& choice : choices) {
    auto& backend = made[choice.backend];
    if (!backend) {
      backend = world.connect(
          {.store = world.store_of(str(group.name, "/", choice.backend)),
           .rank = group.rank,
           .size = group.size(),
           .timeout = group.timeout,
           .name = group.name,
           .world_ranks = group.ranks,
           .stream_priority = priority,
           .num_threads = kGlooThreads},
          maker_of(group.world, choice.backend));
    }
    const auto type = choice.device == "cpu" ? c10::kCPU : c10::kCUDA;
    group.backends[type] = {choice.backend, backend};
  }
}

std::string device_name(const World::State& world) {
  return world.place.device.is_cuda() ? "cuda" : "cpu";
}

}  // namespace

bool ProcessGroup::is_member() const { return impl().rank >= 0; }
int ProcessGroup::size() const { return impl().size(); }
const std::vector<int>& ProcessGroup::ranks() const { return impl().ranks; }
const std::string& ProcessGroup::name() const { return impl().name; }

const std::string& ProcessGroup::description() const {
  return impl().description;
}

int ProcessGroup::world_rank(int group_rank) const {
  impl().check_rank("world_rank", "group rank", group_rank);
  return impl().ranks[group_rank];
}

int ProcessGroup::group_rank(int world_rank) const {
  const std::vector<int>& all = impl().ranks;
  const auto found = std::find(all.begin(), all.end(), world_rank);
  require<InvalidArgument>(found != all.end(), [&] {
    return str(impl().what("group_rank"), "world rank ", world_rank,
               " is not among its ranks {", join(all), "}.");
  });
  return static_cast<int>(found - all.begin());
}

int ProcessGroup::rank() const {
  impl().check_usable("rank");
  return impl().rank;
}

std::string ProcessGroup::backend() const {
  impl().check_usable("backend");
  std::string text;
  for (const auto& [type, entry] : impl().backends) {
    if (entry.name == impl().backends.begin()->second.name && !text.empty()) {
      return entry.name;  // one for all devices
    }
    text += str(text.empty() ? "" : ",",
                type == c10::kCPU ? "cpu:" : "cuda:", entry.name);
  }
  return impl().backends.size() == 1 ? impl().backends.begin()->second.name
                                     : text;
}

std::chrono::milliseconds ProcessGroup::timeout() const {
  impl().check_usable("timeout");
  return impl().timeout;
}

ProcessGroup::Impl& ProcessGroup::impl() const {
  require<InvalidState>(defined(), [] {
    return str("ProcessGroup: this handle is empty; make it by new_group.");
  });
  return *impl_;
}

ProcessGroup new_group(const World& world, std::vector<int> ranks,
                       const GroupOptions& options) {
  const auto& state = checked(world, "new_group");
  auto group = std::make_shared<Impl>();
  group->world = state;
  group->ranks = checked_ranks(std::move(ranks), state->place.size);
  group->timeout = options.timeout.value_or(state->place.timeout);
  require<InvalidArgument>(group->timeout > std::chrono::milliseconds(0), [&] {
    return str("new_group: GroupOptions::timeout is ", group->timeout.count(),
               " ms; give more than 0.");
  });
  const auto choices = choose_backends(options.backend, device_name(*state),
                                       available_backends(world));
  group->description = options.description;
  const auto self =
      std::find(group->ranks.begin(), group->ranks.end(), state->place.rank);
  const bool member = self != group->ranks.end();
  if (!member && options.callers == Callers::members) {
    return ProcessGroup(std::move(group));
  }
  group->name = next_name(*state, group->ranks, options.callers);
  if (member) {
    group->rank = static_cast<int>(self - group->ranks.begin());
    group->rendezvous = std::make_unique<Rendezvous>(
        state->store_of(group->name), group->rank, group->size(),
        group->timeout, [world = state.get()] { return world->failed(); });
    state->add_group(group->name, group->ranks);
  }
  meet_callers(*state, *group, options);
  if (member) connect(*group, choices, options.stream_priority);
  return ProcessGroup(std::move(group));
}

void destroy_process_group(ProcessGroup group) {
  Impl& impl = group.impl();
  impl.check_usable("destroy_process_group");
  impl.world->meet(impl.name, "destroy_process_group", {},
                   [&] { impl.rendezvous->barrier("destroy"); });
  impl.destroyed = true;
  std::vector<c10::intrusive_ptr<c10d::Backend>> ended;
  for (auto& [type, entry] : std::exchange(impl.backends, {})) {
    const bool is_new =
        std::find(ended.begin(), ended.end(), entry.backend) == ended.end();
    if (is_new) impl.world->disconnect(entry.backend);
    ended.push_back(std::move(entry.backend));
  }
}

void register_backend(const World& world, const std::string& name,
                      BackendMaker maker) {
  World::State& state = *checked(world, "register_backend");
  const bool well_formed =
      !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
        return std::islower(static_cast<unsigned char>(c)) != 0 ||
               std::isdigit(static_cast<unsigned char>(c)) != 0 || c == '_';
      });
  const auto here = available_backends(world);
  require<InvalidArgument>(
      well_formed && maker && name != "nccl" &&
          std::count(here.begin(), here.end(), name) == 0,
      [&] {
        return str("register_backend: got the name '", name,
                   "'; expected a new one of lower case letters, digits and ",
                   "'_', with a function that makes the backend.");
      });
  const std::lock_guard lock(state.group_names.mutex);
  state.group_names.makers[name] = std::move(maker);
}

std::vector<std::string> available_backends(const World& world) {
  World::State& state = *checked(world, "available_backends");
  std::vector<std::string> names = {"gloo"};
  if (state.place.device.is_cuda()) names.emplace_back("nccl");
  const std::lock_guard lock(state.group_names.mutex);
  for (const auto& [name, maker] : state.group_names.makers) {
    names.push_back(name);
  }
  return names;
}

}  // namespace tessera::distributed
