#include "cli/launch/spawn.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "cli/launch/file_descriptor.h"
#include "cli/launch/guard.h"
#include "cli/launch/launch_error.h"

namespace tessera::launch {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) {
    result.push_back(const_cast<char*>(text.c_str()));
  }
  result.push_back(nullptr);
  return result;
}

// A descriptor that is already in place would keep its close-on-exec flag.
void place(int from, int to) {
  if (from == to) {
    ::fcntl(to, F_SETFD, 0);
  } else {
    ::dup2(from, to);
  }
}

// Runs in the child. The launcher may have died before the prctl: hence
// getppid.
void become_rank(const SpawnOptions& options, pid_t launcher) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != launcher) ::_exit(kExitLauncher);
  ::setsid();
  add_to_guard(options.guard, ::getpid());
  place(options.input, STDIN_FILENO);
  place(options.output, STDOUT_FILENO);
  place(options.error, STDERR_FILENO);
  ::sigprocmask(SIG_SETMASK, &options.signal_mask, nullptr);
}

std::string reason(const std::string& program, int error) {
  struct stat info {};
  const bool path = program.find('/') != std::string::npos;
  const bool exists = path && ::stat(program.c_str(), &info) == 0;
  if (error == ENOENT && exists) {
    return str("cannot start '", program,
               "': the interpreter that its first "
               "line (#!) or its header names does not exist");
  }
  if (error == ENOENT) {
    return str(
        "command '", program, "' not found",
        path ? "; check the path" : " in PATH; give its path, such as ./",
        path ? "" : program);
  }
  if (exists && S_ISDIR(info.st_mode)) {
    return str("cannot start '", program, "': it is a folder");
  }
  if (error == EACCES) {
    return str("cannot start '", program,
               "': permission denied; is it marked "
               "executable (chmod +x)?");
  }
  return str("cannot start '", program, "': ", std::strerror(error));
}

[[noreturn]] void throw_exec_failed(const std::string& program, int error) {
  throw LaunchError(error == ENOENT ? kExitCommandNotFound : kExitNotExecutable,
                    reason(program, error));
}

[[noreturn]] void throw_no_process(const char* what) {
  const int error = errno;
  throw LaunchError(
      kExitLauncher,
      str("cannot ", what, " for a rank: ", std::strerror(error),
          "; use fewer ranks or raise the limits (ulimit -u, ulimit -n, or the "
          "container's)"));
}

// The child's errno when exec failed; 0 when the pipe was closed by exec.
int read_exec_error(const FileDescriptor& pipe) {
  int error = 0;
  while (::read(pipe.get(), &error, sizeof(error)) < 0 && errno == EINTR) {
  }
  return error;
}

}  // namespace

void check_process_limit(int num_ranks) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NPROC, &limit) != 0) return;
  const auto wanted = static_cast<rlim_t>(num_ranks);
  if (limit.rlim_cur == RLIM_INFINITY || wanted <= limit.rlim_cur) return;
  throw LaunchError(kExitTooManyRanks,
                    str("cannot start ", num_ranks,
                        " ranks: this user may run ", limit.rlim_cur,
                        " processes; use fewer ranks or raise "
                        "the limit (ulimit -u)"));
}

pid_t spawn(const SpawnOptions& options) {
  const std::vector<char*> arguments = pointers(options.command);
  const std::vector<char*> environment = pointers(options.environment);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_no_process("make a pipe");
  const FileDescriptor read_end(ends[0]);
  FileDescriptor write_end(ends[1]);
  const pid_t launcher = ::getpid();
  const pid_t process = ::fork();
  if (process < 0) throw_no_process("start a process");
  if (process == 0) {
    become_rank(options, launcher);
    ::execvpe(arguments[0], arguments.data(), environment.data());
    const int error = errno;
    (void)!::write(write_end.get(), &error, sizeof(error));
    ::_exit(kExitNotExecutable);
  }
  write_end.reset();
  if (const int error = read_exec_error(read_end); error != 0) {
    ::waitpid(process, nullptr, 0);
    throw_exec_failed(options.command[0], error);
  }
  return process;
}

}  // namespace tessera::launch
