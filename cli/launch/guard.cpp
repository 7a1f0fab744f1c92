#include "cli/launch/guard.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <set>

#include "cli/launch/launch_error.h"

namespace tessera::launch {
namespace {

void write_number(int fd, pid_t number) {
  while (::write(fd, &number, sizeof(number)) < 0 && errno == EINTR) {
  }
}

// Numbers are whole: writes of a few bytes to a pipe are never split.
std::set<pid_t> groups_left_at_end_of_file(int fd) {
  std::set<pid_t> groups;
  pid_t number = 0;
  ssize_t num_bytes = 0;
  while ((num_bytes = ::read(fd, &number, sizeof(number))) != 0) {
    if (num_bytes < 0 && errno != EINTR) break;
    if (num_bytes != sizeof(number)) continue;
    if (number > 0) {
      groups.insert(number);
    } else {
      groups.erase(-number);
    }
  }
  return groups;
}

// Lets go of everything of the launcher's but the pipe: whoever reads the
// launcher's output must see its end.
void detach(int pipe) {
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  ::setsid();
  ::prctl(PR_SET_NAME, "tessera-guard");
  ::dup2(pipe, 3);
  ::close_range(4, ~0U, 0);
  const int null = ::open("/dev/null", O_RDWR);
  for (int fd = 0; fd < 3; ++fd) ::dup2(null, fd);
}

[[noreturn]] void run_guard(int pipe) {
  detach(pipe);
  for (const pid_t group : groups_left_at_end_of_file(3)) {
    ::kill(-group, SIGKILL);
  }
  ::_exit(0);
}

}  // namespace

Guard::Guard() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw LaunchError(kExitLauncher,
                      str("cannot make a pipe: ", std::strerror(errno)));
  }
  const FileDescriptor read_end(ends[0]);
  write_end_ = FileDescriptor(ends[1]);
  process_ = ::fork();
  if (process_ < 0) {
    throw LaunchError(kExitLauncher,
                      str("cannot start a process: ", std::strerror(errno)));
  }
  if (process_ == 0) run_guard(read_end.get());
}

Guard::~Guard() {
  write_end_.reset();
  while (::waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guard::forget(pid_t process) { write_number(write_end_.get(), -process); }

void add_to_guard(int write_end, pid_t process) {
  write_number(write_end, process);
}

}  // namespace tessera::launch
