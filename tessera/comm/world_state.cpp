#include "tessera/comm/world_state.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/backend_factory.h"

namespace tessera {
namespace {

std::string join(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += str(text.empty() ? "" : ",", rank);
  return text;
}

}  // namespace

World::State::State(WorldPlace place, c10::intrusive_ptr<c10d::Store> store,
                    std::shared_ptr<gloo::transport::Device> gloo_device)
    : place(place),
      store_(std::move(store)),
      gloo_device_(std::move(gloo_device)),
      rendezvous_(store_, place.rank, place.size, place.timeout,
                  [this] { return failed(); }) {}

World::State::~State() = default;

c10::intrusive_ptr<c10d::Store> World::State::store_of(
    const std::string& prefix) const {
  if (!store_) return {};
  return c10::make_intrusive<c10d::PrefixStore>(prefix, store_);
}

c10::intrusive_ptr<c10d::Backend> World::State::connect(
    const std::string& name, const std::vector<int>& ranks) {
  const std::string key = str(name, "/", join(ranks));
  const std::lock_guard lock(mutex_);
  require<InvalidArgument>(names_.insert(key).second, [&] {
    return str("make_communicator: '", name, "' over ranks ", join(ranks),
               " exists already; keep the first, or choose another name.");
  });
  if (ranks.size() == 1) return {};
  const auto self = std::find(ranks.begin(), ranks.end(), place.rank);
  const BackendPlace backend_place = {
      .store = store_of("backend/" + key),
      .rank = static_cast<int>(self - ranks.begin()),
      .size = static_cast<int>(ranks.size()),
      .timeout = place.timeout,
      .name = name,
      .world_ranks = ranks};
  backends_.push_back(place.device.is_cuda()
                          ? make_nccl_backend(backend_place, place.device)
                          : make_gloo_backend(backend_place, gloo_device_));
  return backends_.back();
}

void World::State::raise(const std::string& what) { throw CommError(what); }

void World::State::abort() noexcept {
  failed_ = true;
  transfers.abort_all();
  const std::lock_guard lock(mutex_);
  for (const auto& backend : backends_) backend->abort();
}

}  // namespace tessera
