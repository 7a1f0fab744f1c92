// Saves to disks that are really full: a file size limit, and a small tmpfs.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <iostream>

#include "tests/checkpoint_format/folder/thread_peers.h"
#include "tests/support/temporary_folder.h"

namespace tessera::checkpoint {
namespace {

using testing::message_of;
using testing::TemporaryFolder;

constexpr int kNotAllowed = 77;
constexpr int kWrong = 1;

// The exit code of `body` in a process of its own, which may spoil its limits.
int exit_code_of(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// A save that does not fit over one that did: what is wrong afterwards, or "".
std::string save_too_much(const std::string& folder, const char* reason) {
  const SmallState older{.rows = 4};
  const std::string path = folder + "/step-1";
  save_small(path, {}, older);
  const std::string error = message_of<CheckpointError>(
      [&] { save_small(path, {}, {.rows = 400'000}); });
  for (const std::string& part : {path, std::string(reason)}) {
    if (error.find(part) == std::string::npos) return "it says: " + error;
  }
  if (local_storage()->list(folder) != std::vector<std::string>{"step-1"}) {
    return "something was left behind";
  }
  return compare_small(path, older);
}

int report(const std::string& wrong) {
  if (wrong.empty()) return 0;
  std::cerr << wrong << "\n";
  return kWrong;
}

TEST(FullDisk, AtAFileSizeLimitKeepsTheOlderCheckpointAndSaysWhy) {
  const TemporaryFolder folder;
  EXPECT_EQ(exit_code_of([&] {
              ::signal(SIGXFSZ, SIG_IGN);
              const rlimit limit{.rlim_cur = 100'000, .rlim_max = 100'000};
              ::setrlimit(RLIMIT_FSIZE, &limit);
              return report(save_too_much(folder.path(), "File too large"));
            }),
            0);
}

// Needs the right to mount; where there is none, the limit above must do.
TEST(FullDisk, OfASmallTmpfsKeepsTheOlderCheckpointAndSaysWhy) {
  const TemporaryFolder folder;
  const int code = exit_code_of([&] {
    const char* path = folder.path().c_str();
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tessera", path, "tmpfs", 0, "size=256k") != 0) {
      return kNotAllowed;
    }
    return report(save_too_much(folder.path(), "No space left"));
  });
  if (code == kNotAllowed) GTEST_SKIP() << "this user may not mount a tmpfs";
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace tessera::checkpoint
