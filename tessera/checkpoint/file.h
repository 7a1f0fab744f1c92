// Files of this machine, read and written at positions, with named errors.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace tessera::checkpoint {

/// What the operating system says of its last error, with `what` and `path` in
/// front. Raises CheckpointError.
[[noreturn]] void raise_errno(const std::string& what, const std::string& path);

/// An open file. Threads may read and write different ranges at once.
class File {
 public:
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  /// Errors, here and below: CheckpointError that names the path and the
  /// system's reason.
  [[nodiscard]] static File open(const std::string& path);
  /// A new file; one that is there already is an error.
  [[nodiscard]] static File create(const std::string& path);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] uint64_t size() const;
  /// Fills all of `into`; an end of file before that is an error.
  void read(uint64_t offset, std::span<std::byte> into) const;
  void write(uint64_t offset, std::span<const std::byte> from);
  /// Returns when the bytes are on the disk.
  void sync();
  /// Drops the file's pages from memory, for benchmarks.
  void drop_pages();
  /// Drops those in which a range lies. A hint.
  void drop_pages(uint64_t offset, uint64_t count) const;

 private:
  File(std::string path, int descriptor)
      : path_(std::move(path)), descriptor_(descriptor) {}

  std::string path_;
  int descriptor_ = -1;
};

/// The whole file, if it is no larger than `most`.
[[nodiscard]] std::string read_file(const std::string& path, uint64_t most);

/// Returns when a folder's list of names is on the disk.
void sync_folder(const std::string& path);

/// Writes `bytes` under a temporary name, syncs, and renames over `path`: a
/// reader finds the old file or the new one.
void replace_file(const std::string& path, std::string_view bytes);

}  // namespace tessera::checkpoint
