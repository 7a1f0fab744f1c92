// Saving a folder: complete or not at all, whatever fails and whoever dies.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <stdexcept>

#include "tessera/checkpoint/contents.h"
#include "tessera/checkpoint/folders.h"
#include "tests/checkpoint_format/folder/hooked_storage.h"
#include "tests/checkpoint_format/folder/thread_peers.h"
#include "tests/support/temporary_folder.h"

namespace tessera::checkpoint {
namespace {

using testing::TemporaryFolder;

std::vector<std::string> names_in(const std::string& folder) {
  return local_storage()->list(folder);
}

TEST(FolderSave, RoundTripsEverySizeAtEveryRankCount) {
  for (int64_t rows = 0; rows <= 9; ++rows) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      const TemporaryFolder folder;
      const SmallState state{.rows = rows, .factor = 3};
      const auto errors = run_peers(ranks, [&](const Peers& peers) {
        save_small(folder / "step-1", peers, state);
      });
      EXPECT_EQ(errors, std::vector<std::string>(ranks));
      EXPECT_EQ(compare_small(folder / "step-1", state), "")
          << rows << " rows on " << ranks << " ranks";
      EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"step-1"});
      // Loads into any other cut.
      const CheckpointReader reader(folder / "step-1");
      for (int readers = 1; readers <= 4; ++readers) {
        for (int rank = 0; rank < readers; ++rank) {
          const Box box = state.box_of(rank, readers);
          std::vector<std::byte> bytes(box.numel());
          reader.read_box("model.w", box, bytes);
          EXPECT_EQ(bytes, state.bytes_of(box));
        }
      }
    }
  }
}

// So that files can be read in place, and around the page cache.
TEST(FolderSave, PutsTheBytesOfEachTensorAtAMultipleOf4096InItsFile) {
  const TemporaryFolder folder;
  Contents contents{.values = {{{"step"}, 7}}};
  for (const int64_t size : {1, 5, 4097, 20000}) {
    contents.tensors.push_back({{str("w", size)}, Dtype::uint8, {size}, [size] {
                                  return std::vector<std::byte>(size);
                                }});
  }
  write_checkpoint(contents, folder / "step-1");
  const CheckpointReader reader(folder / "step-1");
  EXPECT_EQ(reader.metadata().tensors.size(), 4U);
  for (const auto& [key, tensor] : reader.metadata().tensors) {
    const StoredBox& stored = tensor.boxes.at(0);
    const ItemTensor item = reader.read_item(key, stored);
    EXPECT_EQ((stored.place.offset + item.data_begin) % 4096, 0U) << key;
  }
}

TEST(FolderSave, ReplacesAnOlderOneOrRefuses) {
  const TemporaryFolder folder;
  const std::string path = folder / "step-1";
  save_small(path, {}, {.rows = 9, .factor = 1});
  save_small(path, {}, {.rows = 2, .factor = 2});
  EXPECT_EQ(compare_small(path, {.rows = 2, .factor = 2}), "");
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"step-1"});
  EXPECT_THROW(save_small(path, {}, {}, {.existing = Existing::refuse}),
               InvalidArgument);
  EXPECT_EQ(compare_small(path, {.rows = 2, .factor = 2}), "");
}

TEST(FolderSave, KeepsTheModeOfTheFolderThatItReplaces) {
  using std::filesystem::perms;
  const TemporaryFolder folder;
  const std::string path = folder / "step-1";
  save_small(path, {}, {});
  std::filesystem::permissions(path, perms::owner_all | perms::group_read);
  save_small(path, {}, {});
  EXPECT_EQ(std::filesystem::status(path).permissions(),
            perms::owner_all | perms::group_read);
}

// A full disk, or any other failure, at every single step, on either rank.
TEST(FolderSave, FailsOnEveryRankTheSameAndLeavesTheOlderOne) {
  const SmallState older{.rows = 4, .factor = 1};
  for (int failing = 0; failing < 2; ++failing) {
    int64_t last = 0;
    bool failed = true;
    for (int64_t step = 0; failed; ++step) {
      const TemporaryFolder folder;
      const std::string path = folder / "step-1";
      save_small(path, {}, older);
      std::atomic<bool> hit = false;
      const auto fail = [&](int64_t count, const std::string& at) {
        if (count != step) return;
        hit = true;
        throw CheckpointError("cannot write '" + at + "': no space left");
      };
      const auto errors = run_peers(2, [&](const Peers& peers) {
        SaveFolderOptions options;
        if (peers.rank == failing) {
          options.storage = std::make_shared<HookedStorage>(fail);
        }
        save_small(path, peers, {.rows = 4, .factor = 2}, options);
      });
      failed = hit;
      if (!failed) break;
      last = step;
      SCOPED_TRACE(str("rank ", failing, " at step ", step));
      EXPECT_EQ(errors[0], errors[1]);
      for (const std::string& part : {str("failed on rank ", failing),
                                      std::string("no space left"), path}) {
        EXPECT_NE(errors[0].find(part), std::string::npos) << errors[0];
      }
      const std::string now = compare_small(path, older);
      const std::string after = compare_small(path, {.rows = 4, .factor = 2});
      EXPECT_TRUE(now.empty() || after.empty()) << now << after;
      EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"step-1"});
    }
    EXPECT_GE(last, failing == 0 ? 10 : 4);
  }
}

// In a process of its own that dies by SIGKILL before every single step.
TEST(FolderSave, KilledAnywhereLeavesTheOlderOneOrTheNewOne) {
  const SmallState older{.rows = 4, .factor = 1};
  const SmallState newer{.rows = 4, .factor = 2};
  bool killed = true;
  int64_t num_kills = 0;
  for (int64_t step = 0; killed; ++step) {
    const TemporaryFolder folder;
    save_small(folder / "step-1", {}, older);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const auto storage = std::make_shared<HookedStorage>(
          [&](int64_t count, const std::string&) {
            if (count == step) ::raise(SIGKILL);
          });
      save_small(folder / "step-2", {}, newer,
                 {.num_threads = 1, .storage = storage});
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    killed = WIFSIGNALED(status);
    num_kills += killed ? 1 : 0;
    SCOPED_TRACE(str("killed at step ", step));
    const auto found = latest(folder.path());
    ASSERT_TRUE(found);
    EXPECT_EQ(compare_small(*found, step_of(*found) == 2 ? newer : older), "");
    // The next save clears up.
    save_small(folder / "step-2", {}, newer);
    EXPECT_EQ(names_in(folder.path()),
              (std::vector<std::string>{"step-1", "step-2"}));
  }
  EXPECT_GE(num_kills, 10);
}

// The same, over a checkpoint that is there.
TEST(FolderSave, KilledWhileOverwritingNeverMixesOldAndNew) {
  const SmallState older{.rows = 4, .factor = 1};
  const SmallState newer{.rows = 4, .factor = 2};
  int64_t num_older = 0;
  int64_t num_newer = 0;
  for (int64_t step = 0;; ++step) {
    const TemporaryFolder folder;
    const std::string path = folder / "step-1";
    save_small(path, {}, older);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const auto storage = std::make_shared<HookedStorage>(
          [&](int64_t count, const std::string&) {
            if (count == step) ::raise(SIGKILL);
          });
      save_small(path, {}, newer, {.num_threads = 1, .storage = storage});
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    if (!WIFSIGNALED(status)) break;
    SCOPED_TRACE(str("killed at step ", step));
    ASSERT_EQ(latest(folder.path()), path);
    const bool is_older = compare_small(path, older).empty();
    EXPECT_NE(is_older, compare_small(path, newer).empty());
    (is_older ? num_older : num_newer) += 1;
    save_small(path, {}, newer);  // clears up
    EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"step-1"});
  }
  EXPECT_GE(num_older, 8);
  EXPECT_GE(num_newer, 1);
}

// What PyTorch does for uneven FSDP x TP: a box that its data does not fill.
TEST(FolderSave, NeverWritesABoxThatDoesNotFitItsData) {
  const TemporaryFolder folder;
  const SmallState state{.rows = 5};
  const auto errors = run_peers(2, [&](const Peers& peers) {
    WriteSource source = state.source();
    if (peers.rank == 1) {
      source.box = [](const std::string&, const Box&) { return BoxBytes{}; };
    }
    FolderSave save(folder / "step-1", peers,
                    [&] { return state.offer(peers.rank, peers.size); }, {});
    save.commit(peers, [&] { return save.write(source); });
  });
  EXPECT_EQ(errors[0], errors[1]);
  EXPECT_NE(errors[0].find("'model.w' gave 0 bytes for a box of 6"),
            std::string::npos)
      << errors[0];
  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST(FolderSave, OfTwoJobsInOneFolderLeavesOneOfThemWhole) {
  const TemporaryFolder folder;
  const std::string path = folder / "step-1";
  for (int round = 0; round < 10; ++round) {
    std::vector<std::string> errors(2);
    {
      std::vector<std::jthread> jobs;
      for (int job = 0; job < 2; ++job) {
        jobs.emplace_back([&, job] {
          try {
            save_small(path, {}, {.rows = 4, .factor = job + 1});
          } catch (const Error& error) {
            errors[job] = error.what();
          }
        });
      }
    }
    EXPECT_TRUE(errors[0].empty() || errors[1].empty())
        << errors[0] << errors[1];
    EXPECT_TRUE(compare_small(path, {.rows = 4, .factor = 1}).empty() ||
                compare_small(path, {.rows = 4, .factor = 2}).empty());
    EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"step-1"});
  }
}

// A disk that does not show what the other rank made.
class OwnDisk final : public HookedStorage {
 public:
  OwnDisk() : HookedStorage([](int64_t, const std::string&) {}) {}
  bool exists(const std::string&) override { return false; }
};

TEST(FolderSave, OnADiskOfEachRanksOwnFailsAndSaysSo) {
  const TemporaryFolder folder;
  const auto errors = run_peers(2, [&](const Peers& peers) {
    SaveFolderOptions options;
    if (peers.rank == 1) options.storage = std::make_shared<OwnDisk>();
    save_small(folder / "step-1", peers, {}, options);
  });
  EXPECT_EQ(errors[0], errors[1]);
  EXPECT_NE(errors[0].find("every rank must see the same file system"),
            std::string::npos)
      << errors[0];
  EXPECT_TRUE(names_in(folder.path()).empty());
}

// Where rank 0 sees less of rank 1's file than that wrote.
class LaggingDisk final : public HookedStorage {
 public:
  LaggingDisk() : HookedStorage([](int64_t, const std::string&) {}) {}
  std::unique_ptr<ReadableFile> open(const std::string& path) override {
    if (path.ends_with("__1_0.distcp")) std::filesystem::resize_file(path, 10);
    return HookedStorage::open(path);
  }
};

TEST(FolderSave, WhoseFilesAreSmallerThanTheirRanksWroteFailsAndNamesThem) {
  const TemporaryFolder folder;
  const auto errors = run_peers(2, [&](const Peers& peers) {
    SaveFolderOptions options;
    if (peers.rank == 0) options.storage = std::make_shared<LaggingDisk>();
    save_small(folder / "step-1", peers, {}, options);
  });
  EXPECT_EQ(errors[0], errors[1]);
  EXPECT_NE(errors[0].find("__1_0.distcp' has 10 bytes here; its rank wrote"),
            std::string::npos)
      << errors[0];
  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST(FolderSave, LeavesTheFilesOfAnotherJobThatIsAtWorkAlone) {
  const TemporaryFolder folder;
  const std::string path = folder / "step-1";
  const SmallState state{.rows = 3, .factor = 2};
  const WriteSource source = state.source();
  FolderSave slow(path, {}, [&] { return state.offer(0, 1); }, {});
  save_small(path, {}, {.rows = 5, .factor = 7});
  slow.commit({}, [&] { return slow.write(source); });
  EXPECT_EQ(compare_small(path, state), "");
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"step-1"});
}

// Root may write anywhere: as somebody else, until the end of the scope.
class Nobody {
 public:
  Nobody() : user_(::geteuid()) {
    if (user_ == 0 && ::seteuid(65534) != 0)
      throw std::runtime_error("seteuid");
  }
  ~Nobody() {
    if (user_ == 0 && ::seteuid(0) != 0) std::abort();
  }
  Nobody(const Nobody&) = delete;
  Nobody& operator=(const Nobody&) = delete;

 private:
  uid_t user_;
};

TEST(FolderSave, IntoAReadOnlyFolderNamesItAndTheReason) {
  using std::filesystem::perms;
  const TemporaryFolder folder;
  std::filesystem::permissions(
      folder.path(), perms::all & ~(perms::owner_write | perms::group_write |
                                    perms::others_write));
  std::string message;
  {
    const Nobody nobody;
    message = testing::message_of<CheckpointError>(
        [&] { save_small(folder / "step-1", {}, {}); });
  }
  std::filesystem::permissions(folder.path(), perms::owner_all);
  EXPECT_NE(message.find(folder.path() + "/.step-1"), std::string::npos)
      << message;
  EXPECT_NE(message.find("Permission denied"), std::string::npos) << message;
  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST(FolderSave, WithARankThatDisagreesFailsEverywhereBeforeItWrites) {
  const TemporaryFolder folder;
  const auto errors = run_peers(3, [&](const Peers& peers) {
    save_small(folder / "step-1", peers,
               {.rows = 4, .factor = peers.rank == 2 ? 7 : 1});
  });
  EXPECT_EQ(errors[0], errors[1]);
  EXPECT_EQ(errors[0], errors[2]);
  EXPECT_NE(errors[0].find("'step' is 1 on rank 0 and 7 on rank 2"),
            std::string::npos)
      << errors[0];
  EXPECT_TRUE(names_in(folder.path()).empty());
}

}  // namespace
}  // namespace tessera::checkpoint
