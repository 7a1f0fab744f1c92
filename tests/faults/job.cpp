#include "tests/faults/job.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <new>
#include <sstream>
#include <thread>
#include <utility>

#include "tessera/base/error.h"
#include "tests/support/held_port.h"

namespace tessera::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

void write_output_to(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
  ::dup2(file, STDOUT_FILENO);
  ::dup2(file, STDERR_FILENO);
  ::close(file);
}

std::string read(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

JobBoard* make_board() {
  void* memory = ::mmap(nullptr, sizeof(JobBoard), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  require<InvalidState>(memory != MAP_FAILED,
                        [] { return "no shared memory"; });
  return new (memory) JobBoard;
}

std::filesystem::path make_folder() {
  std::string path = std::filesystem::temp_directory_path() / "faultsXXXXXX";
  require<InvalidState>(::mkdtemp(path.data()) != nullptr,
                        [] { return "no temporary folder"; });
  return path;
}

}  // namespace

Job::Job(int size, Fault fault, Variables variables)
    : fault_(std::move(fault)),
      variables_(std::move(variables)),
      board_(make_board()),
      folder_(make_folder()),
      ranks_(size) {
  const int port = testing::held_port();
  std::fflush(nullptr);
  for (int rank = 0; rank < size; ++rank) start_rank(rank, port);
}

void Job::start_rank(int rank, int port) {
  const pid_t child = ::fork();
  require<InvalidState>(child >= 0, [] { return "fork failed"; });
  ranks_[rank] = child;
  if (child > 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  write_output_to(folder_ / std::to_string(rank));
  for (const auto& [name, value] : variables_) {
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  const int code =
      run_rank(rank, static_cast<int>(ranks_.size()), port, fault_, *board_);
  std::fflush(nullptr);
  ::_exit(code);
}

Job::~Job() {
  for (const pid_t rank : ranks_) {
    if (rank == 0) continue;
    ::kill(rank, SIGKILL);
    ::waitpid(rank, nullptr, 0);
  }
  ::munmap(board_, sizeof(JobBoard));
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

bool Job::look_after(int rank, Ended& ended) {
  if (ranks_[rank] == 0) return true;
  int status = 0;
  if (::waitpid(ranks_[rank], &status, WNOHANG) == 0) return false;
  ranks_[rank] = 0;
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  const Clock::duration since =
      Clock::now().time_since_epoch() - Clock::duration(board_->failing_ns);
  ended.seconds = std::chrono::duration<double>(since).count();
  return true;
}

std::vector<Ended> Job::end() {
  const int size = static_cast<int>(ranks_.size());
  const auto deadline = Clock::now() + 60s;
  std::vector<Ended> ended(size);
  const bool stops = fault_.kind == "stop";
  for (bool all = false; !all && Clock::now() < deadline;) {
    std::this_thread::sleep_for(10ms);
    all = true;
    for (int rank = 0; rank < size; ++rank) {
      const bool excused = stops && rank == fault_.rank;
      all = (look_after(rank, ended[rank]) || excused) && all;
    }
  }
  for (int rank = 0; rank < size; ++rank) {
    ended[rank].output = read(folder_ / std::to_string(rank));
    if (ranks_[rank] == 0) continue;
    ended[rank].code = stops && rank == fault_.rank ? -SIGKILL : kLate;
    ::kill(ranks_[rank], SIGKILL);
    ::waitpid(std::exchange(ranks_[rank], 0), nullptr, 0);
  }
  return ended;
}

}  // namespace tessera::test
