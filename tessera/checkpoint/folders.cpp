#include "tessera/checkpoint/folders.h"

#include <algorithm>
#include <charconv>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/reader.h"

namespace tessera::checkpoint {
namespace {

constexpr std::string_view kRemoved = ".removed-";
constexpr std::string_view kLock = ".lock";

struct Found {
  int64_t step;
  std::string name;
  auto operator<=>(const Found&) const = default;
};

std::vector<Found> find(const std::string& folder, Storage& storage) {
  std::vector<Found> found;
  for (const std::string& name : storage.list(folder)) {
    if (name.starts_with('.')) continue;
    const std::string metadata =
        join_path(join_path(folder, name), kMetadataName);
    if (storage.exists(metadata)) found.push_back({step_of(name), name});
  }
  std::ranges::sort(found);
  return found;
}

bool is_complete(const std::string& path,
                 const std::shared_ptr<Storage>& storage) {
  try {
    const CheckpointReader reader(path, storage);
    return true;
  } catch (const Error& error) {
    log_warning("checkpoint '", path, "' is passed over: ", error.what());
    return false;
  }
}

}  // namespace

int64_t step_of(const std::string& name) {
  const size_t last = name.find_last_not_of("0123456789");
  const char* begin = name.data() + (last == std::string::npos ? 0 : last + 1);
  int64_t step = -1;
  const auto [end, error] =
      std::from_chars(begin, name.data() + name.size(), step);
  return error == std::errc() ? step : -1;
}

std::vector<std::string> list_checkpoints(
    const std::string& folder, const std::shared_ptr<Storage>& storage) {
  std::vector<std::string> paths;
  for (const Found& found : find(folder, *storage)) {
    const std::string path = join_path(folder, found.name);
    if (is_complete(path, storage)) paths.push_back(path);
  }
  return paths;
}

std::optional<std::string> latest(const std::string& folder,
                                  const std::shared_ptr<Storage>& storage) {
  std::vector<Found> found = find(folder, *storage);
  for (; !found.empty(); found.pop_back()) {
    const std::string path = join_path(folder, found.back().name);
    if (is_complete(path, storage)) return path;
  }
  return std::nullopt;
}

std::vector<int64_t> steps_to_remove(const std::vector<int64_t>& steps,
                                     const Retention& retention) {
  require<InvalidArgument>(
      retention.keep_latest >= 0 && retention.keep_every >= 0, [&] {
        return str("checkpoint::prune: keep_latest is ", retention.keep_latest,
                   " and keep_every ", retention.keep_every,
                   "; give 0 or more.");
      });
  std::vector<int64_t> removed;
  if (retention.keep_latest == 0) return removed;
  const auto count = static_cast<int64_t>(steps.size());
  for (int64_t i = 0; i + retention.keep_latest < count; ++i) {
    const int64_t step = steps[static_cast<size_t>(i)];
    if (retention.keep_every > 0 && step % retention.keep_every == 0) continue;
    removed.push_back(step);
  }
  return removed;
}

void remove_abandoned(const std::string& folder, const std::string& name,
                      Storage& storage) {
  const auto left_by_save = [&](const std::string& found) {
    return name.empty()
               ? found.starts_with('.') && found.find(kSaving) != found.npos
               : found.starts_with(str(".", name, kSaving));
  };
  for (const std::string& found : storage.list(folder)) {
    if (!left_by_save(found) || found.ends_with(kLock)) continue;
    const std::string lock_path = join_path(folder, found) + std::string(kLock);
    const auto lock = storage.lock(lock_path);
    if (lock == nullptr) continue;  // another job is at work there
    storage.remove_all(join_path(folder, found));
    storage.remove_all(lock_path);
  }
  for (const std::string& found : storage.list(folder)) {
    if (!left_by_save(found) || !found.ends_with(kLock)) continue;
    if (storage.lock(join_path(folder, found)) != nullptr) {
      storage.remove_all(join_path(folder, found));
    }
  }
}

std::vector<std::string> prune(const std::string& folder,
                               const Retention& retention,
                               const std::shared_ptr<Storage>& storage) {
  remove_abandoned(folder, "", *storage);
  for (const std::string& name : storage->list(folder)) {
    if (name.starts_with(kRemoved))
      storage->remove_all(join_path(folder, name));
  }
  std::vector<Found> found = find(folder, *storage);
  std::erase_if(found, [&](const Found& one) {
    return one.step < 0 || !is_complete(join_path(folder, one.name), storage);
  });
  std::vector<int64_t> steps;
  for (const Found& one : found) steps.push_back(one.step);
  const std::vector<int64_t> removed = steps_to_remove(steps, retention);
  std::vector<std::string> paths;
  for (const auto& [step, name] : found) {
    if (std::ranges::find(removed, step) == removed.end()) continue;
    const std::string path = join_path(folder, name);
    const std::string hidden = join_path(folder, str(kRemoved, name));
    storage->rename_folder(path, hidden);
    storage->remove_all(hidden);
    paths.push_back(path);
  }
  return paths;
}

}  // namespace tessera::checkpoint
