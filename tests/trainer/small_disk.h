// A folder with little room: a tmpfs of a given size, for a test of its own.
#pragma once

#include <sched.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace tessera::train {

class SmallDisk {
 public:
  /// Mounts at `path`, which is made. See `error`.
  SmallDisk(std::string path, int64_t bytes) : path_(std::move(path)) {
    std::filesystem::create_directories(path_);
    static const std::string apart = own_mounts();
    error_ = apart;
    if (!error_.empty()) return;
    const std::string size = "size=" + std::to_string(bytes);
    mounted_ = ::mount("tmpfs", path_.c_str(), "tmpfs", 0, size.c_str()) == 0;
    if (!mounted_) error_ = std::string("mount: ") + std::strerror(errno);
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  /// Why this machine lets nobody mount; empty where it does.
  [[nodiscard]] const std::string& error() const { return error_; }

  [[nodiscard]] int64_t free_bytes() const {
    struct statvfs disk = {};
    if (::statvfs(path_.c_str(), &disk) != 0) return -1;
    return static_cast<int64_t>(disk.f_bavail * disk.f_bsize);
  }

  /// Fills the disk with a file "filler" until this much is free.
  void leave_free(int64_t bytes) const {
    const std::string filler = path_ + "/filler";
    std::filesystem::remove(filler);
    const auto fill = static_cast<size_t>(free_bytes() - bytes);
    const std::vector<char> zeros(fill);
    std::ofstream(filler, std::ios::binary)
        .write(zeros.data(), static_cast<std::streamsize>(fill));
  }
  void remove_filler() const { std::filesystem::remove(path_ + "/filler"); }

 private:
  /// Gives this process mounts of its own, which end with it. Needs no root
  /// where user namespaces are allowed.
  static std::string own_mounts() {
    if (::unshare(CLONE_NEWNS) != 0 &&
        ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) {
      return std::string("unshare: ") + std::strerror(errno);
    }
    // Or the mounts would be seen outside.
    if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
      return std::string("mount: ") + std::strerror(errno);
    }
    return "";
  }

  std::string path_;
  std::string error_;
  bool mounted_ = false;
};

}  // namespace tessera::train
