#include "tests/launch/running_program.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace tessera::launch {
namespace {

namespace fs = std::filesystem;

std::string contents(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

fs::path make_folder() {
  std::string path = (fs::temp_directory_path() / "tessera_launch_XXXXXX");
  if (::mkdtemp(path.data()) == nullptr) {
    throw std::runtime_error("cannot make a folder for the test");
  }
  return path;
}

void open_as(const fs::path& path, int flags, int fd) {
  const int file = ::open(path.c_str(), flags | O_CLOEXEC, 0600);
  if (::dup2(file, fd) < 0) ::_exit(99);
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) {
    result.push_back(const_cast<char*>(text.c_str()));
  }
  result.push_back(nullptr);
  return result;
}

}  // namespace

bool eventually(const std::function<bool()>& condition) {
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(300);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
  return true;
}

char state_of(pid_t process) {
  const std::string stat =
      contents("/proc/" + std::to_string(process) + "/stat");
  const size_t name_end = stat.rfind(')');
  return name_end == std::string::npos ? '-' : stat[name_end + 2];
}

bool alive(pid_t process) {
  return std::string("-ZX").find(state_of(process)) == std::string::npos;
}

std::vector<pid_t> descendants(pid_t process) {
  const std::string id = std::to_string(process);
  std::istringstream children(
      contents("/proc/" + id + "/task/" + id + "/children"));
  std::vector<pid_t> result;
  for (pid_t child = 0; children >> child;) {
    result.push_back(child);
    const auto below = descendants(child);
    result.insert(result.end(), below.begin(), below.end());
  }
  return result;
}

RunningProgram::RunningProgram(const std::vector<std::string>& argv,
                               const ProgramOptions& options)
    : folder_(make_folder()) {
  std::ofstream(folder_ / "input") << options.input;
  const std::vector<char*> arguments = pointers(argv);
  process_ = ::fork();
  if (process_ != 0) return;
  open_as(folder_ / "input", O_RDONLY, 0);
  open_as(folder_ / "output", O_WRONLY | O_CREAT | O_APPEND, 1);
  open_as(folder_ / "error", O_WRONLY | O_CREAT | O_APPEND, 2);
  options.in_child();
  ::execvp(arguments[0], arguments.data());
  ::_exit(98);
}

RunningProgram::~RunningProgram() {
  if (!exit_code_) {
    send(SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

void RunningProgram::send(int signal) const { ::kill(process_, signal); }

int RunningProgram::wait() {
  int status = 0;
  const bool ended = eventually(
      [&] { return ::waitpid(process_, &status, WNOHANG) == process_; });
  if (!ended) return -1;
  exit_code_ =
      WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return *exit_code_;
}

std::string RunningProgram::output() const {
  return contents(folder_ / "output");
}

std::string RunningProgram::error() const {
  return contents(folder_ / "error");
}

std::string RunningProgram::wait_for_lines(int count) const {
  std::string text;
  const bool come = eventually([&] {
    text = output();
    return std::ranges::count(text, '\n') >= count;
  });
  if (!come)
    throw std::runtime_error("lines never came; got: " + text + error());
  return text;
}

std::vector<std::string> run_script(int num_ranks, const std::string& script,
                                    const std::vector<std::string>& options) {
  std::vector<std::string> argv = {TESSERA_PROGRAM, "run", "-n",
                                   std::to_string(num_ranks)};
  argv.insert(argv.end(), options.begin(), options.end());
  argv.insert(argv.end(), {"--", "sh", "-c", script});
  return argv;
}

std::vector<pid_t> numbers(const std::string& text) {
  std::istringstream in(text);
  std::vector<pid_t> result;
  for (pid_t number = 0; in >> number;) result.push_back(number);
  return result;
}

}  // namespace tessera::launch
