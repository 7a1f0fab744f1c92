#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <utility>

#include "tessera/base/environment.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/comm/backend_factory.h"
#include "tessera/comm/launch.h"
#include "tessera/comm/terminate_report.h"
#include "tessera/comm/world_state.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;

// Ranks of one job start minutes apart when machines are slow.
constexpr milliseconds kLongestStart = std::chrono::minutes(5);

bool uses_nccl(CommBackend backend) {
  if (backend == CommBackend::gloo) return false;
  const bool available = nccl_is_available();
  require<InvalidArgument>(available || backend != CommBackend::nccl, [] {
    return str(
        "init_distributed: NCCL was asked for, but this build has no CUDA, or "
        "this machine has no CUDA device; use CommBackend::gloo.");
  });
  return available;
}

c10::Device device_of(const Job& job, const InitOptions& options) {
  if (!uses_nccl(options.backend)) return c10::kCPU;
  return choose_cuda_device(job.local_rank, job.world_size);
}

milliseconds timeout_of(const InitOptions& options, c10::Device device) {
  const milliseconds timeout = options.timeout.value_or(
      device.is_cuda() ? std::chrono::minutes(10) : std::chrono::minutes(30));
  require<InvalidArgument>(timeout > milliseconds(0), [&] {
    return str("init_distributed: InitOptions::timeout is ", timeout.count(),
               " ms; give more than 0.");
  });
  return timeout;
}

c10::intrusive_ptr<c10d::Store> connect_store(const Job& job,
                                              milliseconds timeout) {
  const bool hosts = job.rank == 0 && !job.agent_hosts_store;
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(job.master_port);
  options.isServer = hosts;
  options.waitWorkers = false;
  options.timeout = std::min(timeout, kLongestStart);
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(job.master_addr, options);
    return c10::make_intrusive<c10d::PrefixStore>(job.key_prefix, store);
  } catch (const std::exception& error) {
    throw CommError(tessera::str(
        "init_distributed: rank ", job.rank, " of ", job.world_size,
        hosts ? " cannot host" : " cannot reach", " the store at MASTER_ADDR ",
        job.master_addr, ", MASTER_PORT ", job.master_port, ": ",
        reason_of(error),
        hosts ? ". Is the port taken, or the address another machine's?"
              : ". Does the process that holds it run, and is the address "
                "right?"));
  }
}

void check_rank_is_free(const Job& job, c10d::Store& store) {
  require<CommError>(store.add(str("rank/", job.rank), 1) == 1, [&] {
    return str("init_distributed: two processes have RANK ", job.rank,
               " at MASTER_ADDR ", job.master_addr, ", MASTER_PORT ",
               job.master_port, "; give each its own rank, and each job its ",
               "own port.");
  });
}

std::shared_ptr<gloo::transport::Device> gloo_device_of(const Job& job) {
  const std::string interface = environment::gloo_interface().value_or("");
  return make_gloo_device(interface,
                          is_loopback(job.master_addr) ? "127.0.0.1" : "");
}

std::string launcher_of(const Job& job) {
  return tessera::str(job.source, " (", job.because, ")");
}

void say_what_was_found(const Job& job, c10::Device device) {
  if (job.rank != 0) return;
  log_debug("job found by ", launcher_of(job));
  log_info("job found by ", job.source, ": ", job.world_size,
           job.world_size == 1 ? " rank, " : " ranks, ",
           device.is_cuda() ? "NCCL" : "Gloo",
           job.world_size == 1     ? ""
           : job.agent_hosts_store ? ", store of the launching agent"
                                   : ", store of rank 0");
}

}  // namespace

World init_distributed(const InitOptions& options) {
  report_on_terminate();
  const Job job = find_job(environment::launch());
  set_log_rank(job.rank);
  const c10::Device device = device_of(job, options);
  const WorldPlace place = {.rank = job.rank,
                            .size = job.world_size,
                            .local_rank = job.local_rank.value_or(0),
                            .device = device,
                            .timeout = timeout_of(options, device),
                            .launcher = launcher_of(job)};
  say_what_was_found(job, device);
  if (job.world_size == 1) {
    return World(std::make_shared<World::State>(place, nullptr, nullptr,
                                                WatchdogOptions{}));
  }
  auto store = connect_store(job, place.timeout);
  check_rank_is_free(job, *store);
  auto gloo = device.is_cuda() ? nullptr : gloo_device_of(job);
  auto state = std::make_shared<World::State>(
      place, std::move(store), std::move(gloo),
      WatchdogOptions{.on_timeout = options.on_timeout});
  report_on_terminate(state);
  return World(std::move(state));
}

}  // namespace tessera
