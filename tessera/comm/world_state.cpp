#include "tessera/comm/world_state.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <system_error>
#include <utility>

#include "tessera/base/environment.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/comm/backend_factory.h"
#include "tessera/comm/communicator.h"

namespace tessera {
namespace {

std::string join(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += str(text.empty() ? "" : ",", rank);
  return text;
}

c10::intrusive_ptr<c10d::Store> in_memory() {
  return c10::make_intrusive<c10d::HashStore>();
}

std::shared_ptr<HostLink> make_link() {
  try {
    return std::make_shared<HostLink>();
  } catch (const std::system_error& error) {
    throw CommError(str(
        "init_distributed: this system gives no memory to share "
        "among ranks (",
        error.what(), "); set TESSERA_SHARED_MEMORY=off to use TCP alone."));
  }
}

}  // namespace

World::State::State(WorldPlace place, c10::intrusive_ptr<c10d::Store> store,
                    std::function<GlooDevices()> make_devices,
                    WatchdogOptions options)
    : place(place),
      store_(store ? std::move(store) : in_memory()),
      make_devices_(std::move(make_devices)),
      rendezvous_(store_of("world"), place.rank, place.size, place.timeout,
                  [this] { return failed(); }) {
  if (place.size == 1) return;
  if (place.device.is_cpu() && environment::uses_shared_memory()) {
    link_ = make_link();
  }
  if (collective_check_wanted()) {
    check_ = std::make_unique<CollectiveCheck>(store_of("check"), place.rank);
    messages_ = std::make_unique<MessageCheck>(store_of("sent"), place.rank);
  }
  watchdog_ = std::make_unique<Watchdog>(
      store_, place.rank, place.size, log,
      WatchdogCalls{
          .look = [this] { look_at_device(); },
          .end_waits = [this] { abort(); },
          .has_peer = [this](const std::string& name,
                             int rank) { return has_peer(name, rank); }},
      options, place.timeout);
}

World::State::~State() {
  if (std::uncaught_exceptions() > 0) fail("it left its World by an exception");
  run_last_checks();
  try {
    if (!failed_) say_goodbye();
  } catch (const std::exception& error) {
    log_warning("the end of the world: ", reason_of(error));
  }
  watchdog_.reset();
  if (failed_) peers.leak();
  for (const auto& backend : backends_) {
    failed_ ? backend->abort() : backend->shutdown();
  }
}

c10::intrusive_ptr<c10d::Store> World::State::store_of(
    const std::string& prefix) const {
  return c10::make_intrusive<c10d::PrefixStore>(prefix, store_);
}

Routes World::State::connect(const std::string& name,
                             const std::vector<int>& ranks) {
  const auto self = std::find(ranks.begin(), ranks.end(), place.rank);
  const BackendPlace backend_place = {
      .store = store_of(str("backend/", name, "/", join(ranks))),
      .rank = static_cast<int>(self - ranks.begin()),
      .size = static_cast<int>(ranks.size()),
      .timeout = place.timeout,
      .name = name,
      .world_ranks = ranks};
  add_group(name, ranks);
  if (ranks.size() == 1) return {};
  Routes routes;
  routes.backend = connect(backend_place, [&](const BackendPlace& at) {
    share_memory(routes, at);
    return place.device.is_cuda() ? make_nccl_backend(at, place.device)
                                  : make_gloo_backend(at, gloo_devices());
  });
  return routes;
}

c10::intrusive_ptr<c10d::Backend> World::State::connect(
    const BackendPlace& at, const BackendMaker& make) {
  auto backend = meet(at.name, "connect", {}, [&] {
    // A backend's own wait for its peers does not end when one of them fails.
    start_of(at).barrier("start");
    return make(at);
  });
  const std::lock_guard lock(mutex_);
  backends_.push_back(backend);
  if (failed_) backend->abort();
  return backend;
}

Rendezvous World::State::start_of(const BackendPlace& at) {
  return {c10::make_intrusive<c10d::PrefixStore>("start", at.store), at.rank,
          at.size, at.timeout, [this] { return failed(); }};
}

void World::State::share_memory(Routes& routes, const BackendPlace& at) {
  if (place.device.is_cuda()) return;
  Rendezvous start = start_of(at);
  HostOffer offer = link_ ? link_->offer(at.size) : HostOffer();
  const auto texts = start.exchange("memory", offer.text());
  const std::string reached =
      link_ ? link_->reach(offer, texts, at.rank) : std::string(at.size, 'n');
  const auto all_reached = start.exchange("reached", reached);
  if (!link_) return;
  routes.channels = link_->connect(std::move(offer), all_reached);
  routes.link = link_;
}

void World::State::disconnect(
    const c10::intrusive_ptr<c10d::Backend>& backend) {
  {
    const std::lock_guard lock(mutex_);
    std::erase(backends_, backend);
  }
  backend->shutdown();
}

void World::State::add_group(const std::string& name,
                             const std::vector<int>& ranks) {
  const std::lock_guard lock(mutex_);
  const auto [first, last] = groups_.equal_range(name);
  const bool is_new = std::none_of(
      first, last, [&](const auto& group) { return group.second == ranks; });
  require<InvalidArgument>(is_new, [&] {
    return str("make_communicator: '", name, "' over ranks ", join(ranks),
               " exists already; keep the first, or choose another name.");
  });
  groups_.emplace(name, ranks);
}

void World::State::add_peers(const std::string& name,
                             const std::vector<int>& ranks) {
  const std::lock_guard lock(mutex_);
  if (!groups_.contains(name)) groups_.emplace(name, ranks);
}

GlooDevices World::State::gloo_devices() {
  const std::lock_guard lock(mutex_);
  if (gloo_devices_.empty()) gloo_devices_ = make_devices_();
  return gloo_devices_;
}

bool World::State::has_peer(const std::string& communicator, int rank) {
  const std::lock_guard lock(mutex_);
  const auto [first, last] = groups_.equal_range(communicator);
  return std::any_of(first, last, [&](const auto& group) {
    return std::count(group.second.begin(), group.second.end(), rank) > 0;
  });
}

void World::State::abort() noexcept {
  record_flight("ended, because the job has failed elsewhere");
  failed_ = true;
  if (link_) link_->abort();
  peers.stop();
  transfers.abort_all();
  const std::lock_guard lock(mutex_);
  for (const auto& backend : backends_) backend->abort();
}

}  // namespace tessera
