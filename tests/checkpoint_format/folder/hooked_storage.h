// The disk, with a word in all that changes it: to fail, or to die, at each
// step.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/checkpoint/storage.h"

namespace tessera::checkpoint {

// Counts what is done to the disk; `at` is called before the n-th.
class HookedStorage : public Storage {
 public:
  explicit HookedStorage(std::function<void(int64_t, const std::string&)> at)
      : at_(std::move(at)) {}

  [[nodiscard]] int64_t count() const { return count_; }

  std::unique_ptr<ReadableFile> open(const std::string& path) override {
    return inner_->open(path);
  }
  std::unique_ptr<WritableFile> create(const std::string& path) override {
    step(path);
    return std::make_unique<HookedFile>(*this, path, inner_->create(path));
  }
  bool exists(const std::string& path) override { return inner_->exists(path); }
  std::vector<std::string> list(const std::string& folder) override {
    return inner_->list(folder);
  }
  void make_folders(const std::string& path) override {
    step(path);
    inner_->make_folders(path);
  }
  void exchange_folders(const std::string& from,
                        const std::string& to) override {
    step(to);
    inner_->exchange_folders(from, to);
  }
  void rename_folder(const std::string& from, const std::string& to) override {
    step(to);
    inner_->rename_folder(from, to);
  }
  void remove_all(const std::string& path) override {
    inner_->remove_all(path);
  }
  void sync_folder(const std::string& folder) override {
    step(folder);
    inner_->sync_folder(folder);
  }
  std::unique_ptr<Lock> lock(const std::string& path) override {
    return inner_->lock(path);
  }

 private:
  class HookedFile final : public WritableFile {
   public:
    HookedFile(HookedStorage& storage, std::string path,
               std::unique_ptr<WritableFile> inner)
        : storage_(storage), path_(std::move(path)), inner_(std::move(inner)) {}
    void write(uint64_t offset, std::span<const std::byte> from) override {
      inner_->write(offset, from.first(from.size() / 2));
      storage_.step(path_);  // half of it is on the disk
      inner_->write(offset, from);
    }
    void sync() override {
      storage_.step(path_);
      inner_->sync();
    }

   private:
    HookedStorage& storage_;
    std::string path_;
    std::unique_ptr<WritableFile> inner_;
  };

  void step(const std::string& path) { at_(count_++, path); }

  std::function<void(int64_t, const std::string&)> at_;
  std::atomic<int64_t> count_ = 0;
  std::shared_ptr<Storage> inner_ = local_storage();
};

}  // namespace tessera::checkpoint
