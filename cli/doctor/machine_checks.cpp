#include "cli/doctor/machine_checks.h"

#include <netdb.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>

#include "tessera/base/error.h"

namespace tessera::cli::doctor {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr rlim_t kFewFiles = 256;  // below this a job of many ranks breaks
constexpr rlim_t kEnoughFiles = 4096;
constexpr uint64_t kLittleMemory = 64 * kMiB;  // what containers get by default
constexpr std::time_t kPlausible = 1'704'067'200;  // the start of 2024

std::string own_host_name() {
  std::array<char, 256> name{};
  require<InvalidState>(::gethostname(name.data(), name.size() - 1) == 0,
                        [] { return str("gethostname: ", strerror(errno)); });
  return name.data();
}

bool resolves(const std::string& name) {
  addrinfo* found = nullptr;
  const bool ok = ::getaddrinfo(name.c_str(), nullptr, nullptr, &found) == 0;
  if (found != nullptr) ::freeaddrinfo(found);
  return ok;
}

std::string limit_text(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : std::to_string(limit);
}

rlim_t limit_of(__rlimit_resource_t resource) {
  rlimit limit{};
  require<InvalidState>(::getrlimit(resource, &limit) == 0,
                        [] { return str("getrlimit: ", strerror(errno)); });
  return limit.rlim_cur;
}

// Ranks of one machine talk through such memory.
void make_anonymous_memory() {
  const int fd = ::memfd_create("tessera doctor", 0);
  require<InvalidState>(fd >= 0,
                        [] { return str("memfd_create: ", strerror(errno)); });
  const bool grows = ::ftruncate(fd, kMiB) == 0;
  const std::string reason = strerror(errno);
  ::close(fd);
  require<InvalidState>(
      grows, [&] { return str("1 MiB of anonymous shared memory: ", reason); });
}

}  // namespace

Check check_machine() {
  return run_check(
      "machine", kExitMachine, "This system call should not fail.",
      [](Check& check) {
        utsname system{};
        ::uname(&system);
        struct sysinfo memory {};
        ::sysinfo(&memory);
        cpu_set_t processors;
        CPU_ZERO(&processors);
        ::sched_getaffinity(0, sizeof(processors), &processors);
        const std::string host = own_host_name();
        check.text =
            str(host, ": ", system.sysname, " ", system.release, ", ",
                CPU_COUNT(&processors), " processors, ",
                memory.totalram * memory.mem_unit / kMiB, " MiB of memory, ",
                memory.freeram * memory.mem_unit / kMiB, " MiB free");
        if (resolves(host)) return;
        check.status = Status::warning;
        check.text += "; its name has no address";
        check.remedy =
            "Gloo over several machines binds to the address of this name. Add "
            "it to /etc/hosts, or name the interface in GLOO_SOCKET_IFNAME.";
      });
}

Check check_limits() {
  return run_check(
      "limits", kExitLimits, "This system call should not fail.",
      [](Check& check) {
        const rlim_t files = limit_of(RLIMIT_NOFILE);
        check.text = str("open files ", limit_text(files), ", processes ",
                         limit_text(limit_of(RLIMIT_NPROC)), ", locked memory ",
                         limit_text(limit_of(RLIMIT_MEMLOCK)), ", stack ",
                         limit_text(limit_of(RLIMIT_STACK)), ", core ",
                         limit_text(limit_of(RLIMIT_CORE)));
        if (files >= kEnoughFiles) return;
        check.status = files < kFewFiles ? Status::failed : Status::warning;
        check.remedy =
            str("each peer of each group takes a connection; raise "
                "the limit: ulimit -n ",
                kEnoughFiles, ".");
      });
}

Check check_shared_memory() {
  return run_check(
      "shared memory", kExitSharedMemory,
      "CPU ranks of one machine talk through shared memory; allow it, or set "
      "TESSERA_SHARED_MEMORY=off to use TCP alone.",
      [](Check& check) {
        make_anonymous_memory();
        struct statvfs shm {};
        if (::statvfs("/dev/shm", &shm) != 0) {
          check.status = Status::warning;
          check.text = "there is no /dev/shm";
          check.remedy = "NCCL needs it between devices of one machine.";
          return;
        }
        const uint64_t size = shm.f_blocks * shm.f_frsize;
        check.text = str("/dev/shm has ", size / kMiB, " MiB, ",
                         shm.f_bavail * shm.f_frsize / kMiB,
                         " MiB free; anonymous memory can be shared");
        if (size > kLittleMemory) return;
        check.status = Status::warning;
        check.remedy =
            "NCCL may run out of it between devices of one machine; give a "
            "container more (--shm-size=1g, or --ipc=host).";
      });
}

Check check_clock() {
  return run_check("clock", kExitClock, "Set the clock.", [](Check& check) {
    const auto now =
        std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
    timex state{};
    const int kind = ::adjtimex(&state);
    const bool synchronised = kind != -1 && (state.status & STA_UNSYNC) == 0;
    std::array<char, 32> text{};
    std::tm parts{};
    ::gmtime_r(&now, &parts);
    std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &parts);
    check.text = str(text.data(), kind == -1     ? ", no word on NTP"
                                  : synchronised ? ", synchronised"
                                                 : ", not synchronised");
    if (now < kPlausible) {
      check.status = Status::failed;
      check.remedy = "the clock is years behind; set it.";
    }
  });
}

}  // namespace tessera::cli::doctor
