// Where checkpoints lie: folders of files, behind an interface, so that tests
// can put a failing one in its place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::checkpoint {

/// Threads may read different ranges at once.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  [[nodiscard]] virtual const std::string& path() const = 0;
  [[nodiscard]] virtual uint64_t size() const = 0;
  /// Fills all of `into`. Errors: CheckpointError with path and reason.
  virtual void read(uint64_t offset, std::span<std::byte> into) const = 0;
  /// A hint: what was read there is not needed in memory.
  virtual void forget(uint64_t /*offset*/, uint64_t /*count*/) const {}
};

/// Threads may write different ranges at once.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual void write(uint64_t offset, std::span<const std::byte> from) = 0;
  /// Returns when the bytes will survive a power cut.
  virtual void sync() = 0;
};

/// A lock file that this process holds, until the object goes or the process
/// ends.
class Lock {
 public:
  virtual ~Lock() = default;
};

/// Errors of all methods: CheckpointError with path and reason.
class Storage {
 public:
  virtual ~Storage() = default;

  [[nodiscard]] virtual std::unique_ptr<ReadableFile> open(
      const std::string& path) = 0;
  /// A new file; one that is there is an error.
  [[nodiscard]] virtual std::unique_ptr<WritableFile> create(
      const std::string& path) = 0;
  [[nodiscard]] virtual bool exists(const std::string& path) = 0;
  /// The names in a folder, sorted; none when it is not there.
  [[nodiscard]] virtual std::vector<std::string> list(
      const std::string& folder) = 0;
  /// With all parents. One that is there already is fine.
  virtual void make_folders(const std::string& path) = 0;
  /// Puts folder `from` in the place of `to` in one step, with its mode. What
  /// was at `to` lies at `from` then.
  virtual void exchange_folders(const std::string& from,
                                const std::string& to) = 0;
  /// `to` must not exist.
  virtual void rename_folder(const std::string& from,
                             const std::string& to) = 0;
  /// A folder or file and all in it; nothing when it is not there.
  virtual void remove_all(const std::string& path) = 0;
  /// Returns when the list of names of `folder` will survive a power cut.
  virtual void sync_folder(const std::string& folder) = 0;
  /// Locks a file, which is made if it is not there. Null when another holds
  /// it.
  [[nodiscard]] virtual std::unique_ptr<Lock> lock(const std::string& path) = 0;
};

/// The file systems of this machine, and those mounted there.
[[nodiscard]] std::shared_ptr<Storage> local_storage();

/// "folder/name".
[[nodiscard]] std::string join_path(const std::string& folder,
                                    std::string_view name);

/// The folder above, "." for a plain name; a trailing slash does not count.
[[nodiscard]] std::string parent_path(const std::string& path);
/// The last component.
[[nodiscard]] std::string base_name(const std::string& path);

[[nodiscard]] bool is_folder(const std::string& path);
/// Whether `name` is one of a file in a folder, and leads nowhere else.
[[nodiscard]] bool is_plain_name(std::string_view name);

/// Writes a file by `write` under a temporary name, syncs, and puts it in the
/// place of `path`. An error leaves what was there, and no temporary file.
void replace_by(Storage& storage, const std::string& path,
                const std::function<void(WritableFile&)>& write);

[[nodiscard]] std::string read_all(const ReadableFile& file, uint64_t most);
void write_all(Storage& storage, const std::string& path,
               std::string_view bytes);

}  // namespace tessera::checkpoint
