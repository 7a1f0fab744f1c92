// The disk, with a word in all files that are opened for reading.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "tests/checkpoint_format/folder/hooked_storage.h"

namespace tessera::checkpoint {

class OpenedStorage final : public HookedStorage {
 public:
  using Hook = std::function<void(const std::string& name)>;

  /// Called with the file's name in its folder.
  OpenedStorage(Hook before, Hook after)
      : HookedStorage([](int64_t, const std::string&) {}),
        before_(std::move(before)),
        after_(std::move(after)) {}

  std::unique_ptr<ReadableFile> open(const std::string& path) override {
    if (before_) before_(base_name(path));
    auto file = HookedStorage::open(path);
    if (after_) after_(base_name(path));
    return file;
  }

 private:
  Hook before_, after_;
};

}  // namespace tessera::checkpoint
