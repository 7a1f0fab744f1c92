#include "tessera/checkpoint/storage.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "tessera/base/error.h"
#include "tessera/checkpoint/file.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

class LocalFile final : public ReadableFile, public WritableFile {
 public:
  explicit LocalFile(File file) : file_(std::move(file)) {}

  [[nodiscard]] const std::string& path() const override {
    return file_.path();
  }
  [[nodiscard]] uint64_t size() const override { return file_.size(); }
  void read(uint64_t offset, std::span<std::byte> into) const override {
    file_.read(offset, into);
  }
  void forget(uint64_t offset, uint64_t count) const override {
    file_.drop_pages(offset, count);
  }
  void write(uint64_t offset, std::span<const std::byte> from) override {
    file_.write(offset, from);
  }
  void sync() override { file_.sync(); }

 private:
  File file_;
};

class FileLock final : public Lock {
 public:
  explicit FileLock(int descriptor) : descriptor_(descriptor) {}
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  ~FileLock() override { ::close(descriptor_); }

 private:
  int descriptor_;
};

void check(const std::error_code& error, const char* what,
           const std::string& path) {
  if (!error) return;
  throw CheckpointError(
      str("cannot ", what, " '", path, "': ", error.message(), "."));
}

// Gives `to` the mode of what it replaces. Who may replace but not own it
// leaves a mode of its own.
void keep_mode(const std::string& to, const std::string& replaced) {
  std::error_code ignored;
  const fs::perms mode = fs::status(replaced, ignored).permissions();
  if (!ignored) fs::permissions(to, mode, ignored);
}

class LocalStorage final : public Storage {
 public:
  std::unique_ptr<ReadableFile> open(const std::string& path) override {
    return std::make_unique<LocalFile>(File::open(path));
  }

  std::unique_ptr<WritableFile> create(const std::string& path) override {
    return std::make_unique<LocalFile>(File::create(path));
  }

  bool exists(const std::string& path) override {
    std::error_code error;
    return fs::exists(path, error);
  }

  std::vector<std::string> list(const std::string& folder) override {
    std::vector<std::string> names;
    if (!exists(folder)) return names;
    std::error_code error;
    for (fs::directory_iterator at(folder, error), end; !error && at != end;
         at.increment(error)) {
      names.push_back(at->path().filename().string());
    }
    check(error, "list folder", folder);
    std::ranges::sort(names);
    return names;
  }

  void make_folders(const std::string& path) override {
    std::error_code error;
    fs::create_directories(path, error);
    check(error, "make folder", path);
  }

  void exchange_folders(const std::string& from,
                        const std::string& to) override {
    keep_mode(from, to);
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(),
                    RENAME_EXCHANGE) != 0) {
      raise_errno("put a new folder in the place of", to);
    }
  }

  void rename_folder(const std::string& from, const std::string& to) override {
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(),
                    RENAME_NOREPLACE) == 0) {
      return;
    }
    // Some network file systems know plain rename only, which replaces no
    // folder that holds something.
    if (errno == EINVAL || errno == ENOSYS) {
      if (::rename(from.c_str(), to.c_str()) == 0) return;
    }
    raise_errno("rename a folder to", to);
  }

  void remove_all(const std::string& path) override {
    std::error_code error;
    fs::remove_all(path, error);
    check(error, "remove", path);
  }

  void sync_folder(const std::string& folder) override {
    checkpoint::sync_folder(folder);
  }

  std::unique_ptr<Lock> lock(const std::string& path) override {
    const int descriptor =
        ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor < 0) raise_errno("create lock file", path);
    auto lock = std::make_unique<FileLock>(descriptor);
    if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) return lock;
    if (errno == EWOULDBLOCK) return nullptr;
    raise_errno("lock", path);
  }
};

}  // namespace

std::shared_ptr<Storage> local_storage() {
  return std::make_shared<LocalStorage>();
}

std::string join_path(const std::string& folder, std::string_view name) {
  return (fs::path(folder) / name).string();
}

std::string parent_path(const std::string& path) {
  const fs::path normal = fs::path(path).lexically_normal();
  const fs::path plain = normal.has_filename() ? normal : normal.parent_path();
  const fs::path parent = plain.parent_path();
  return parent.empty() ? "." : parent.string();
}

std::string base_name(const std::string& path) {
  const fs::path normal = fs::path(path).lexically_normal();
  return (normal.has_filename() ? normal : normal.parent_path())
      .filename()
      .string();
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) ==
             std::string_view::npos;
}

bool is_folder(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

void replace_by(Storage& storage, const std::string& path,
                const std::function<void(WritableFile&)>& write) {
  const std::string temporary = path + ".part";
  storage.remove_all(temporary);
  try {
    const auto file = storage.create(temporary);
    write(*file);
    file->sync();
    if (storage.exists(path)) {
      storage.exchange_folders(temporary, path);
      storage.remove_all(temporary);
    } else {
      storage.rename_folder(temporary, path);
    }
  } catch (...) {
    storage.remove_all(temporary);
    throw;
  }
  storage.sync_folder(parent_path(path));
}

std::string read_all(const ReadableFile& file, uint64_t most) {
  const uint64_t size = file.size();
  require<CheckpointError>(size <= most, [&] {
    return str("cannot read '", file.path(), "': it has ", size,
               " bytes; expected at most ", most, ".");
  });
  std::string bytes(size, '\0');
  file.read(0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

void write_all(Storage& storage, const std::string& path,
               std::string_view bytes) {
  const auto file = storage.create(path);
  file->write(0, std::as_bytes(std::span(bytes)));
  file->sync();
}

}  // namespace tessera::checkpoint
