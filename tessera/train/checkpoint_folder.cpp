#include "tessera/train/checkpoint_folder.h"

#include <filesystem>
#include <limits>
#include <system_error>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/checkpoint/folders.h"
#include "tessera/checkpoint/reader.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kBest = "best";

/// Turns what std::filesystem throws into an error of ours.
template <class Body>
auto named(Body&& body) {
  try {
    return body();
  } catch (const fs::filesystem_error& error) {
    throw CheckpointError(
        str("'", error.path1().string(), "': ", error.code().message(), "."));
  }
}

/// A link, or a copy where the file system has none.
void link_or_copy(const fs::path& from, const fs::path& to) {
  std::error_code failed;
  fs::create_hard_link(from, to, failed);
  if (failed) fs::copy_file(from, to);
}

int64_t step_of_checkpoint(const fs::path& path) {
  if (path.filename() != kBest) {
    return checkpoint::step_of(path.filename().string());
  }
  try {
    const checkpoint::CheckpointReader reader(path.string());
    return reader.read_value("trainer.step", checkpoint::OnUnknown::refuse)
        .as_int();
  } catch (const Error&) {
    return std::numeric_limits<int64_t>::max();  // damaged: of no run
  }
}

/// Those in `folder` that are later than `step`. Hidden ones are unfinished.
std::vector<fs::path> later_than(const fs::path& folder, int64_t step) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const bool hidden = entry.path().filename().string().starts_with('.');
    if (entry.is_directory() && !hidden &&
        step_of_checkpoint(entry.path()) > step) {
      found.push_back(entry.path());
    }
  }
  return found;
}

std::string unused_name(const std::string& folder) {
  int number = 1;
  while (fs::exists(str(folder, ".", number))) ++number;
  return str(folder, ".", number);
}

}  // namespace

std::string checkpoint_folder(const std::string& run) {
  return run + "/checkpoints";
}

std::string checkpoint_path(const std::string& run, int64_t step) {
  return str(checkpoint_folder(run), "/step-", step);
}

void keep_as_best(const std::string& run, const std::string& path) {
  const std::string folder = checkpoint_folder(run);
  const std::string best = str(folder, "/", kBest);
  const std::string fresh = str(folder, "/.", kBest, ".new");
  const auto storage = checkpoint::local_storage();
  storage->remove_all(fresh);
  storage->make_folders(fresh);
  named([&] {
    for (const auto& entry : fs::directory_iterator(path)) {
      link_or_copy(entry.path(), fs::path(fresh) / entry.path().filename());
    }
  });
  storage->sync_folder(fresh);
  if (storage->exists(best)) {
    storage->exchange_folders(fresh, best);
    storage->remove_all(fresh);
  } else {
    storage->rename_folder(fresh, best);
  }
  storage->sync_folder(folder);
}

std::string set_aside_checkpoints(const std::string& run, int64_t step) {
  const std::string folder = checkpoint_folder(run);
  if (!checkpoint::local_storage()->exists(folder)) return "";
  return named([&] {
    const auto moved = later_than(folder, step);
    if (moved.empty()) return std::string();
    const std::string aside = unused_name(folder);
    fs::create_directory(aside);
    for (const fs::path& path : moved) {
      fs::rename(path, fs::path(aside) / path.filename());
    }
    return aside;
  });
}

}  // namespace tessera::train
