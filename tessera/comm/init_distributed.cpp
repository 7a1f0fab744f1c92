#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <utility>

#include "tessera/base/environment.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/comm/backend_factory.h"
#include "tessera/comm/collective_check.h"
#include "tessera/comm/init_method.h"
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
  const std::optional<c10::Device> asked = options.device;
  require<InvalidArgument>(
      !asked || asked->is_cpu() || (asked->is_cuda() && asked->has_index()),
      [&] {
        return tessera::str("init_distributed: InitOptions::device is ", *asked,
                            "; expected cpu, or cuda with an index.");
      });
  if (asked && asked->is_cpu()) {
    require<InvalidArgument>(options.backend != CommBackend::nccl, [] {
      return str(
          "init_distributed: NCCL was asked for with the device cpu; "
          "give a CUDA device, or CommBackend::gloo.");
    });
    return *asked;
  }
  require<InvalidArgument>(!asked || options.backend != CommBackend::gloo, [&] {
    return tessera::str("init_distributed: Gloo was asked for with the ",
                        "device ", *asked, "; a world over Gloo computes ",
                        "on the CPU.");
  });
  if (asked) return choose_cuda_device(asked->index(), job.world_size);
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

Transport transport_of(const InitOptions& options, c10::Device device) {
  const bool copies = options.transport
                          ? *options.transport == Transport::copy_engines
                          : environment::uses_copy_engines();
  require<InvalidArgument>(!copies || device.is_cuda(), [&] {
    return tessera::str(
        "init_distributed: the transport copy_engines was ",
        "asked for with the device ", device,
        "; it goes between CUDA devices. Leave ",
        options.transport ? "InitOptions::transport" : "TESSERA_TRANSPORT",
        " unset.");
  });
  return copies ? Transport::copy_engines : Transport::nccl;
}

int64_t window_mib_of(const InitOptions& options) {
  const auto asked =
      options.window_mib ? options.window_mib : environment::window_mib();
  const int64_t mib = asked.value_or(kPeerWindowMib);
  require<InvalidArgument>(mib >= 1 && mib <= kMostPeerWindowMib, [&] {
    return str(
        "init_distributed: ",
        options.window_mib ? "InitOptions::window_mib" : "TESSERA_WINDOW_MIB",
        " is ", mib, "; give 1 to ", kMostPeerWindowMib, ".");
  });
  return mib;
}

Store connect_store(const Job& job, milliseconds timeout) {
  const bool hosts = job.rank == 0 && !job.agent_hosts_store;
  try {
    return tcp_store({.host = job.master_addr,
                      .port = job.master_port,
                      .role = hosts ? StoreRole::server : StoreRole::client,
                      .timeout = std::min(timeout, kLongestStart)});
  } catch (const CommError& error) {
    throw CommError(str("init_distributed: rank ", job.rank, " of ",
                        job.world_size, " cannot ", hosts ? "host" : "reach",
                        " the store at MASTER_ADDR ", job.master_addr,
                        ", MASTER_PORT ", job.master_port, ": ", error.what()));
  }
}

/// A job, and where its ranks meet.
struct Meeting {
  Job job;
  std::string path;  // of a file store, else ""
  Store store;       // a given one
};

// The options as the variables of a launcher, which find_job checks. A rank
// that is given is no launcher's: what others say of theirs does not count.
environment::Launch launch_of(const InitOptions& options,
                              const InitMethod& method) {
  const environment::Launch found = environment::launch();
  const auto rank = options.rank ? options.rank : method.rank;
  const auto size = options.world_size ? options.world_size : method.world_size;
  environment::Launch launch = found;
  if (rank || size) {
    launch.open_mpi = launch.mpich = launch.mvapich = launch.jsrun = {};
    launch.slurm = {};
    launch.mpi_job.reset();
    launch.completion_index.reset();
    launch.processes_per_pod.reset();
  }
  if (rank) launch.rank = *rank;
  if (size) launch.world_size = *size;
  if (method.place != MeetingPlace::tcp) return launch;
  launch.agent_hosts_store = found.agent_hosts_store &&
                             found.master_addr == method.host &&
                             found.master_port == method.port;
  launch.master_addr = method.host;
  launch.master_port = method.port;
  return launch;
}

// A job that meets at a file or a given store: nobody knows its address.
Job job_without_address(const environment::Launch& launch,
                        const std::string& source) {
  require<InvalidArgument>(
      launch.rank && launch.world_size && *launch.rank >= 0 &&
          *launch.rank < *launch.world_size,
      [&] {
        const auto text = [](const std::optional<int64_t>& number) {
          return number ? std::to_string(*number) : std::string("unset");
        };
        return str("init_distributed: ", source, " with rank ",
                   text(launch.rank), " and world size ",
                   text(launch.world_size), "; give both, the rank below the ",
                   "size, in the URL or in InitOptions.");
      });
  Job job;
  job.rank = static_cast<int>(*launch.rank);
  job.world_size = static_cast<int>(*launch.world_size);
  if (launch.local_rank) job.local_rank = static_cast<int>(*launch.local_rank);
  job.key_prefix = "tessera";
  return job;
}

Meeting find_meeting(const InitOptions& options) {
  require<InvalidArgument>(
      !options.store.defined() || options.init_method.empty(), [&] {
        return str("init_distributed: got a store and the init_method '",
                   options.init_method, "'; give one of them.");
      });
  const InitMethod method = parse_init_method(options.init_method);
  const environment::Launch launch = launch_of(options, method);
  Meeting meeting;
  meeting.path = method.path;
  meeting.store = options.store;
  if (options.store.defined()) {
    meeting.job = job_without_address(launch, "a given store");
    meeting.job.source = "a given store";
    meeting.job.because = "InitOptions::store";
  } else if (method.place == MeetingPlace::file) {
    meeting.job = job_without_address(launch, "file://");
    meeting.job.source = str("file://", method.path);
    meeting.job.because = "InitOptions::init_method";
  } else {
    meeting.job = find_job(launch);
    if (method.place == MeetingPlace::tcp) {
      meeting.job.source = str("tcp://", method.host, ":", method.port);
      meeting.job.because = "InitOptions::init_method";
    }
  }
  return meeting;
}

Store store_of(const Meeting& meeting, milliseconds timeout) {
  const Job& job = meeting.job;
  Store store = meeting.store;
  if (!meeting.path.empty()) store = file_store(meeting.path, job.world_size);
  if (!store.defined()) store = connect_store(job, timeout);
  store.set_timeout(std::min(timeout, kLongestStart));
  return prefix_store(job.key_prefix, store);
}

void check_rank_is_free(const Meeting& meeting, const Store& store) {
  const Job& job = meeting.job;
  require<CommError>(store.add(str("rank/", job.rank), 1) == 1, [&] {
    if (job.master_addr.empty()) {
      return str("init_distributed: two processes have rank ", job.rank, " at ",
                 job.source, ", or an earlier job has left its keys ",
                 "there; give each process its own rank, and each job a new ",
                 meeting.path.empty() ? "store." : "file.");
    }
    return str("init_distributed: two processes have RANK ", job.rank,
               " at MASTER_ADDR ", job.master_addr, ", MASTER_PORT ",
               job.master_port, "; give each its own rank, and each job its ",
               "own port.");
  });
}

std::function<GlooDevices()> gloo_devices_of(const Job& job) {
  const std::string host_name =
      job.world_size == 1 || is_loopback(job.master_addr) ? "127.0.0.1" : "";
  return [host_name] {
    return make_gloo_devices(environment::gloo_interface().value_or(""),
                             host_name);
  };
}

std::string launcher_of(const Job& job) {
  return tessera::str(job.source, " (", job.because, ")");
}

// Ranks that do not copy would meet the others' windows where they compare
// something else.
void compare_transports(World::State& world) {
  std::string own = name_of(world.place.transport);
  if (world.place.transport == Transport::copy_engines) {
    own = str(own, " with windows of ", world.place.window_mib, " MiB");
  }
  const auto all = world.meet("world", "exchange", {.unit = "transport"}, [&] {
    return world.rendezvous().exchange("transport", own);
  });
  for (size_t rank = 0; rank < all.size(); ++rank) {
    require<InvalidArgument>(all[rank] == own, [&] {
      return str("init_distributed: rank ", world.place.rank,
                 " has the transport ", own, ", but rank ", rank, " has ",
                 all[rank], "; give all the same TESSERA_TRANSPORT or ",
                 "InitOptions::transport, and TESSERA_WINDOW_MIB or ",
                 "InitOptions::window_mib.");
    });
  }
}

void say_what_was_found(const Job& job, c10::Device device) {
  if (job.rank != 0) return;
  log_debug("job found by ", launcher_of(job));
  log_info("job found by ", job.source, ": ", job.world_size,
           job.world_size == 1 ? " rank, " : " ranks, ",
           device.is_cuda() ? "NCCL" : "Gloo",
           job.world_size == 1       ? ""
           : job.agent_hosts_store   ? ", store of the launching agent"
           : job.master_addr.empty() ? ""
                                     : ", store of rank 0");
}

}  // namespace

World init_distributed(const InitOptions& options) {
  report_on_terminate();
  const Meeting meeting = find_meeting(options);
  const Job& job = meeting.job;
  set_log_rank(job.rank);
  const c10::Device device = device_of(job, options);
  const WorldPlace place = {.rank = job.rank,
                            .size = job.world_size,
                            .local_rank = job.local_rank.value_or(0),
                            .device = device,
                            .timeout = timeout_of(options, device),
                            .transport = transport_of(options, device),
                            .window_mib = window_mib_of(options),
                            .launcher = launcher_of(job)};
  say_what_was_found(job, device);
  if (job.world_size == 1) {
    return World(std::make_shared<World::State>(
        place, nullptr, gloo_devices_of(job), WatchdogOptions{}));
  }
  // Before any rank waits for one that will not come.
  (void)collective_check_wanted();
  const Store store = store_of(meeting, place.timeout);
  check_rank_is_free(meeting, store);
  auto state = std::make_shared<World::State>(
      place, store.c10d(), gloo_devices_of(job),
      WatchdogOptions{.on_timeout = options.on_timeout});
  report_on_terminate(state);
  if (device.is_cuda()) compare_transports(*state);
  return World(std::move(state));
}

}  // namespace tessera
