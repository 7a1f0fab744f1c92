#include "tessera/base/run_program.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr int kNotFound = 127;
constexpr int kKilled = 128;
constexpr long kKeptBytes = 2000;  // of standard error

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

/// The three standard files of the program. SIGPIPE and the rest are as in a
/// fresh process.
class Setup {
 public:
  Setup(const ProgramFiles& files, int error) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawn_file_actions_addopen(&actions_, 0, files.input.c_str(),
                                     O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions_, 1, files.output.c_str(),
                                     O_WRONLY | O_CREAT | O_TRUNC, 0666);
    posix_spawn_file_actions_adddup2(&actions_, error, 2);
    posix_spawnattr_init(&attributes_);
    sigset_t all, none;
    sigfillset(&all);
    sigemptyset(&none);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setflags(&attributes_,
                             POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  }
  ~Setup() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  Setup(const Setup&) = delete;
  Setup& operator=(const Setup&) = delete;

  /// 0, or what went wrong, as in errno.
  int start(const std::vector<std::string>& argv, pid_t& process) const {
    std::vector<char*> words;
    for (const std::string& word : argv) {
      words.push_back(const_cast<char*>(word.c_str()));
    }
    words.push_back(nullptr);
    return posix_spawnp(&process, words[0], &actions_, &attributes_,
                        words.data(), environ);
  }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

int wait_for(pid_t process) {
  int status = 0;
  while (::waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status) ? kKilled + WTERMSIG(status) : WEXITSTATUS(status);
}

std::string last_bytes_of(std::FILE* file) {
  std::fseek(file, 0, SEEK_END);
  const long start = std::max(0L, std::ftell(file) - kKeptBytes);
  std::fseek(file, start, SEEK_SET);
  std::string text(kKeptBytes, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

}  // namespace

ProgramResult run_program(const std::vector<std::string>& argv,
                          const ProgramFiles& files) {
  require(!argv.empty(), [] { return str("run_program: no program given."); });
  const File error(std::tmpfile(), &std::fclose);
  require<InvalidState>(error != nullptr, [&] {
    return str("no temporary file can be made (", std::strerror(errno), ").");
  });
  pid_t process = -1;
  const int reason = Setup(files, ::fileno(error.get())).start(argv, process);
  if (reason == ENOENT && ::access(files.input.c_str(), R_OK) == 0) {
    return {kNotFound, str("'", argv[0], "' was not found")};
  }
  require<InvalidState>(reason == 0, [&] {
    return str("'", argv[0], "' cannot be started (", std::strerror(reason),
               ").");
  });
  const int code = wait_for(process);
  return {code, last_bytes_of(error.get())};
}

}  // namespace tessera
