// Ranks that are processes, one of which dies by SIGKILL at any step of a save.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <optional>

#include "tessera/checkpoint/folders.h"
#include "tests/checkpoint_format/folder/hooked_storage.h"
#include "tests/checkpoint_format/folder/thread_peers.h"
#include "tests/support/temporary_folder.h"

namespace tessera::checkpoint {
namespace {

using testing::TemporaryFolder;

constexpr int kRanks = 2;
constexpr int kFailed = 3;          // exit code of a rank that got an error
constexpr unsigned kDeadline = 20;  // seconds, then SIGALRM

// A message with its length in front. Nothing when the other side is gone.
std::optional<std::string> receive(int socket) {
  uint64_t size = 0;
  if (::recv(socket, &size, sizeof size, MSG_WAITALL) != sizeof size) return {};
  std::string bytes(size, '\0');
  const auto wanted = static_cast<ssize_t>(size);
  if (::recv(socket, bytes.data(), size, MSG_WAITALL) != wanted) return {};
  return bytes;
}

void send(int socket, const std::string& bytes) {
  const uint64_t size = bytes.size();
  const std::string message =
      std::string(reinterpret_cast<const char*>(&size), sizeof size) + bytes;
  (void)!::send(socket, message.data(), message.size(), MSG_NOSIGNAL);
}

// Rank `rank` of two, joined by a socket; it knows when the other is gone.
Peers peers_over(int socket, int rank) {
  return {rank, kRanks, [socket, rank](std::string_view own) {
            send(socket, std::string(own));
            const auto other = receive(socket);
            if (!other) throw CommError(str("rank ", 1 - rank, " is gone"));
            std::vector<std::string> all(kRanks);
            all[static_cast<size_t>(rank)] = own;
            all[static_cast<size_t>(1 - rank)] = *other;
            return all;
          }};
}

struct Ends {
  bool killed = false;     // the rank that was to die got so far
  int code_of_other = -1;  // exit code
};

// Saves `state` to `path`; rank `dying` is killed before its step `step`.
Ends save_and_kill(const std::string& path, const SmallState& state, int dying,
                   int64_t step) {
  std::array<int, kRanks> sockets{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets.data()), 0);
  std::array<pid_t, kRanks> children{};
  for (int rank = 0; rank < kRanks; ++rank) {
    children[rank] = ::fork();
    if (children[rank] != 0) continue;
    ::alarm(kDeadline);
    ::close(sockets[1 - rank]);
    SaveFolderOptions options{.num_threads = 1};
    if (rank == dying) {
      options.storage = std::make_shared<HookedStorage>(
          [&](int64_t count, const std::string&) {
            if (count == step) ::raise(SIGKILL);
          });
    }
    try {
      save_small(path, peers_over(sockets[rank], rank), state, options);
      ::_exit(0);
    } catch (const Error&) {
      ::_exit(kFailed);
    }
  }
  for (const int socket : sockets) ::close(socket);
  Ends ends;
  for (int rank = 0; rank < kRanks; ++rank) {
    int status = 0;
    EXPECT_EQ(::waitpid(children[rank], &status, 0), children[rank]);
    if (rank == dying) {
      ends.killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    } else if (WIFEXITED(status)) {
      ends.code_of_other = WEXITSTATUS(status);
    }
  }
  return ends;
}

class KilledRank : public ::testing::TestWithParam<int> {};

TEST_P(KilledRank, LeavesTheOlderOneOrTheNewOneAndEndsTheOther) {
  const SmallState older{.rows = 4, .factor = 1};
  const SmallState newer{.rows = 4, .factor = 2};
  int64_t num_kills = 0;
  for (int64_t step = 0;; ++step) {
    SCOPED_TRACE(str("killed at step ", step));
    const TemporaryFolder folder;
    save_small(folder / "step-1", {}, older);
    const Ends ends = save_and_kill(folder / "step-2", newer, GetParam(), step);
    EXPECT_TRUE(ends.code_of_other == 0 || ends.code_of_other == kFailed)
        << ends.code_of_other;
    const auto found = latest(folder.path());
    ASSERT_TRUE(found);
    EXPECT_EQ(compare_small(*found, step_of(*found) == 2 ? newer : older), "");
    save_small(folder / "step-2", {}, newer);  // clears up
    EXPECT_EQ(local_storage()->list(folder.path()),
              (std::vector<std::string>{"step-1", "step-2"}));
    if (!ends.killed) break;
    ++num_kills;
  }
  EXPECT_GE(num_kills, GetParam() == 0 ? 8 : 3);
}

INSTANTIATE_TEST_SUITE_P(Ranks, KilledRank, ::testing::Values(0, 1));

}  // namespace
}  // namespace tessera::checkpoint
