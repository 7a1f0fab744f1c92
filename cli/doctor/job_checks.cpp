#include "cli/doctor/job_checks.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>

#include <chrono>
#include <filesystem>

#include "tessera/base/environment.h"
#include "tessera/base/error.h"
#include "tessera/base/version.h"
#include "tessera/comm/backend_factory.h"
#include "tessera/comm/cuda_report.h"
#include "tessera/comm/init_method.h"
#include "tessera/comm/launch.h"
#include "tessera/comm/stores.h"

namespace tessera::cli::doctor {
namespace {

constexpr auto kPatience = std::chrono::seconds(5);

// Fast paths of the processor that this LibTorch found.
std::string cpu_capability() { return at::get_cpu_capability(); }

int count_device_files() {
  int count = 0;
  std::error_code ignored;
  for (const auto& entry :
       std::filesystem::directory_iterator("/dev", ignored)) {
    const std::string name = entry.path().filename();
    const bool is_card =
        name.starts_with("nvidia") && name.size() > 6 &&
        name.find_first_not_of("0123456789", 6) == std::string::npos;
    if (is_card) ++count;
  }
  return count;
}

void use(const Store& store) {
  const std::string key = str("tessera/doctor/", ::getpid());
  store.set_timeout(kPatience);
  store.set(key, "here");
  require<CommError>(store.get(key) == "here" && store.add(key + "/n", 2) == 2,
                     [] { return str("it does not keep values."); });
}

}  // namespace

Check check_versions() {
  return run_check("versions", kExitVersions, "", [](Check& check) {
    check.text = str("tessera ", version(), ", LibTorch ", torch_version(),
                     ", compiler ", __VERSION__, ", ", cpu_capability());
  });
}

Check check_launcher() {
  return run_check(
      "launcher", kExitLauncher,
      "See docs/run.md for what each launcher sets; unset what is left over "
      "from another job.",
      [](Check& check) {
        const Job job = find_job(environment::launch());
        check.text = str(job.source, " (", job.because, "): rank ", job.rank,
                         " of ", job.world_size);
        if (job.world_size > 1) {
          check.text +=
              str(", store at ", job.master_addr, ":", job.master_port,
                  job.agent_hosts_store ? " held by the launcher"
                                        : " held by rank 0");
        }
      });
}

Check check_devices() {
  return run_check("devices", kExitDevices, "", [](Check& check) {
    const std::vector<std::string> names = cuda_device_names();
    for (size_t device = 0; device < names.size(); ++device) {
      check.text += str("cuda:", device, " ", names[device], "; ");
    }
    const int cards = count_device_files();
    check.text +=
        str(cards, " CUDA devices on this machine, ", at::get_num_threads(),
            " threads for each operator on the CPU");
    if (cards == 0 || !names.empty()) return;
    check.status = Status::warning;
    check.remedy =
        "this program uses no CUDA device: it was built without "
        "TESSERA_CUDA=ON, or the driver or CUDA_VISIBLE_DEVICES hides them.";
  });
}

Check check_gloo() {
  return run_check(
      "Gloo", kExitGloo,
      "GLOO_SOCKET_IFNAME must name an interface of this machine (ip addr), or "
      "this machine's name must have an address (/etc/hosts).",
      [](Check& check) {
        const auto interface = environment::gloo_interface();
        const GlooDevices devices =
            make_gloo_devices(interface.value_or(""), "");
        check.text =
            interface ? str("listens on ", *interface)
                      : str("listens at the address of this machine's name");
      });
}

Check check_nccl() {
  return run_check("NCCL", kExitNccl, "", [](Check& check) {
    if (nccl_is_available()) {
      check.text = str(nccl_version(), "; the checks of a job's ranks use it");
      return;
    }
    check.status = Status::skipped;
    check.text = "not in this build, or no CUDA device here";
  });
}

Check check_store(const std::string& address) {
  if (!address.empty()) {
    return run_check(
        "store", kExitStore,
        "Start what serves the store first, and open the port between the "
        "machines.",
        [&](Check& check) {
          const InitMethod method = parse_init_method("tcp://" + address);
          use(tcp_store({.host = method.host,
                         .port = method.port,
                         .timeout = kPatience}));
          check.text = str("reached ", address);
        });
  }
  return run_check("store", kExitStore, "Ports of the loopback must be open.",
                   [](Check& check) {
                     const Store server =
                         tcp_store({.port = 0, .role = StoreRole::server});
                     const int port = tcp_store_port(server);
                     use(tcp_store({.port = port, .timeout = kPatience}));
                     check.text = str("served and reached at 127.0.0.1:", port,
                                      " (--store HOST:PORT tries another)");
                   });
}

}  // namespace tessera::cli::doctor
